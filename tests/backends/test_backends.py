"""Backends of the user's: registered, installed, split off, trained, composed, timed, kept; and wrong ones."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node

import lamina
from lamina.backends import registry
from lamina.backends.regions import progress_printer
from lamina.backends.registry import BUILT_IN, as_backend
from lamina.errors import BackendFailed
from lamina.extend import Backend, Passes, compose, register_backend, rule

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", dict(BUILT_IN))
    monkeypatch.setattr(registry, "_of_function", {})
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    hidden = torch.relu(x @ w) * 2
    return hidden.softmax(-1), hidden.sum()


def arguments() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.randn(s, generator=generator).requires_grad_() for s in ((4, 6), (6, 8)))  # type: ignore[return-value]


def agrees(backend: Any, function: Callable[..., Any] = program, **options: Any) -> Any:
    """Compile, compare outputs and gradients with eager, give back what was compiled."""
    compiled = lamina.compile(function, backend=backend, **options)
    results = []
    for run in (function, compiled, compiled):
        inputs = arguments()
        outputs = run(*inputs)
        sum((k + 1) * out.sum() for k, out in enumerate(outputs)).backward()
        results.append(([o.detach() for o in outputs], [i.grad for i in inputs]))
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])
    return compiled


class Seen:
    """A backend that notes the operations of each graph by the graph's kind."""

    def __init__(self) -> None:
        self.ops: dict[str, list[str]] = {}

    def compile(self, gm: GraphModule, example_inputs: list[Any], kind: str) -> Callable[..., Any]:
        found = [str(n.target) for n in gm.graph.nodes if n.op == "call_function"]
        self.ops[kind] = [*self.ops.get(kind, []), *found]
        return gm.forward


def test_a_function_is_a_backend_that_gets_forward_and_backward_as_functional_aten() -> None:
    graphs: list[list[str]] = []

    def mine(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append([str(n.target) for n in gm.graph.nodes if n.op == "call_function"])
        assert len(example_inputs) == len(gm.graph.find_nodes(op="placeholder"))
        return gm.forward

    agrees(mine)
    forward, backward = graphs
    assert "aten._softmax.default" in forward
    assert "aten.threshold_backward.default" in backward
    assert all(name.startswith("aten.") for name in (*forward, *backward))


def test_backends_are_registered_by_name_as_a_call_and_as_a_decorator() -> None:
    @register_backend
    def first(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return gm.forward

    @register_backend(name="second one", training=False)
    def second(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return gm.forward

    value = register_backend(Backend("third", first))
    assert isinstance(value, Backend)
    for backend in ("first", "second one", "third", first, second, value):
        agrees(backend)
    assert not as_backend(second).training  # what was said of it when it was registered holds for the function too
    assert lamina.register_backend is register_backend


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: register_backend(Backend("eager", print)), "'eager' is a built-in backend"),
        (lambda: register_backend(print, name="inductor"), "torch.compile has a backend 'inductor'"),
        (lambda: register_backend(print, colour="red"), "a backend has no colour"),
        (lambda: register_backend(3), "the backend to register is 3"),
        (lambda: register_backend(lambda gm, inputs: gm), "has no name"),
        (lambda: Backend("x", print, dtypes=torch.float32), "dtypes of backend 'x' is torch.float32"),
        (lambda: Backend("x", print, dtypes=("float32",)), "dtypes of backend 'x' holds 'float32'"),
        (lambda: Backend("x", print, supports="all"), "supports of backend 'x' is 'all'"),
        (lambda: Backend("x", print, training="no"), "training of backend 'x' is 'no'"),
        (lambda: Backend("x", print, passes=print), "passes of backend 'x' is <built-in function print>"),
        (lambda: Backend("x", print, rules=(print,)), "rules of backend 'x' holds <built-in function print>"),
        (lambda: Backend("x", print, fallback=None), "fallback of backend 'x' is None"),
        (lambda: Backend("x", 3), "the compile of backend 'x' is a int"),
        (lambda: Backend("", print), "a backend's name is ''"),
        (lambda: Backend("x", print, graph="onnx"), "the graph of backend 'x' is 'onnx'"),
        (lambda: Backend("x", print, devices="cpu"), "devices of backend 'x' is the string 'cpu'"),
        (lambda: Backend("x", print, save=bytes), "has one of save and load"),
        (lambda: lamina.compile(abs, backend="indctor"), "no backend is called 'indctor'\n  do: did you mean inductor"),
        (lambda: lamina.compile(abs, backend="count", mode="max-autotune"), "'count' does not take mode"),
        (lambda: lamina.compile(abs, backend="debug", options={"jobs": 2}), "'debug' does not take jobs"),
        (lambda: lamina.compile(abs, backend="cudagraphs", mode="max-autotune"), "'cudagraphs' does not take mode"),
        (lambda: lamina.compile(abs, backend="inductor", options=lamina.Options()), "its options are not Lamina's"),
        (lambda: compose(3, then="aten"), "compose was given 3"),
    ],
)
def test_what_is_wrong_is_refused_in_words(given: Callable[[], Any], words: str) -> None:
    with pytest.raises(lamina.BadArgument) as caught:
        given()
    assert words in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mode": "max-autotun"}, "inductor has no mode 'max-autotun'\n  do: did you mean 'max-autotune'"),
        ({"options": {"max_autotun": True}}, "did you mean 'max_autotune'"),
        (
            {"options": {"numerics": "eager"}},
            "no option 'numerics'\n  do: .*Lamina's options go with backend=\"lamina\"",
        ),
        ({"options": {3: True}}, "no option 3"),
    ],
)
def test_inductors_modes_and_options_are_checked_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(lamina.UnknownOption, match=words):
        lamina.compile(abs, backend="inductor", **given)


@pytest.mark.parametrize(
    ("supports", "words"),
    [
        (lambda node: node.colour, r"raised AttributeError: .*colour.* for node 'mm'"),
        (lambda node: None, r"returned None for node 'mm', a call of aten.mm.default\n  at test_backends.py:\d+"),
    ],
)
def test_a_supports_that_fails_is_named_with_the_call(supports: Any, words: str) -> None:
    backend = Backend("picky", lambda gm, inputs: gm.forward, supports=supports)
    with pytest.raises(BackendFailed, match=f"supports of backend 'picky' {words}"):
        lamina.compile(program, backend=backend)(*arguments())


def test_installed_packages_bring_backends_and_a_broken_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed(EntryPoint):
        dist = type("Package", (), {"name": "nice-package"})()

    here = __name__
    points = {
        "installed": Installed("installed", f"{here}:offered", registry.GROUP),
        "broken": Installed("broken", f"{here}:nothing_of_that_name", registry.GROUP),
    }
    monkeypatch.setattr(registry, "_entry_points", lambda: points)
    registry._installed.cache_clear()
    sys.modules[here].offered = lambda gm, example_inputs: gm.forward  # type: ignore[attr-defined]
    agrees("installed")
    with (
        pytest.warns(UserWarning, match="the backend 'broken' of the package 'nice-package': AttributeError"),
        pytest.raises(lamina.BadArgument, match="no backend is called 'broken'"),
    ):
        lamina.compile(abs, backend="broken")
    registry._installed.cache_clear()


@pytest.mark.parametrize("fallback", ["eager", "lamina", "interp"])
def test_what_a_backend_does_not_take_goes_to_its_fallback(fallback: str) -> None:
    seen = Seen()

    def supports(node: Node) -> bool | str:
        return "products elsewhere" if node.target is aten.mm.default else True

    compiled = agrees(Backend("parts", seen.compile, supports=supports, fallback=fallback))
    assert "aten.relu.default" in seen.ops["forward"]
    assert "aten.mm.default" not in [*seen.ops["forward"], *seen.ops["backward"]]
    decisions = compiled.record.decisions("backend")
    (refused, *_) = [d for d in decisions if not d.taken]
    assert refused.reason == "products elsewhere"
    assert refused.subject == ("aten.mm.default",)
    taken = [d for d in decisions if d.taken]
    assert taken
    assert "aten.relu.default" in taken[0].subject
    assert (fallback == "eager") == ("fuse" not in [s.name for s in compiled.record.stages])


def test_parts_that_depend_on_each_other_by_turns_stay_apart() -> None:
    def alternating(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        a = torch.sin(x)
        b = a @ w
        c = torch.sin(b)
        d = c @ w.t()
        values, places = (d + x).max(dim=-1)
        return torch.sin(d) + a, values + places

    seen = Seen()
    backend = Backend("sines", seen.compile, supports=lambda node: node.target in (aten.sin.default, aten.add.Tensor))
    compiled = agrees(backend, alternating)
    assert set(seen.ops["forward"]) == {"aten.sin.default", "aten.add.Tensor"}
    (split,) = [s.value for s in compiled.record.stages if s.name == "split" and s.region.endswith("forward")]
    assert sum(part.taken for part in split.subgraphs) >= 2
    assert "sines" not in split.text()
    assert "alternating0_forward_part0" in split.text()


def test_facts_decide_before_a_backend_is_asked() -> None:
    seen = Seen()
    only = Backend("only", seen.compile, dtypes=(torch.float32,), devices=("cpu",), training=False, dynamic=False)

    def run(x: Tensor) -> Tensor:
        return (x * 2).double() + 1

    compiled = lamina.compile(run, backend=only)
    x = torch.randn(3)
    assert torch.equal(compiled(x), run(x))
    assert seen.ops == {"inference": ["aten.mul.Tensor"]}
    trained = agrees(only)
    assert {d.reason for d in trained.record.decisions("backend")} == {"only does not train"}
    symbolic = lamina.compile(run, backend=only, dynamic=True)
    assert torch.equal(symbolic(x), run(x))
    assert [d.reason for d in symbolic.record.decisions("backend")] == [
        "only needs sizes that are known when it compiles"
    ]
    elsewhere = lamina.compile(run, backend="cuda")
    assert torch.equal(elsewhere(x), run(x))
    assert {d.reason for d in elsewhere.record.decisions("backend")} == {"a tensor on cpu"}


def test_a_backend_may_decline_a_graph() -> None:
    def picky(gm: GraphModule, example_inputs: list[Any], kind: str) -> Callable[..., Any]:
        if kind == "backward":
            raise NotImplementedError("no backward today")
        return gm.forward

    compiled = agrees(Backend("picky", picky, fallback="lamina"))
    assert [d.reason for d in compiled.record.decisions("backend") if not d.taken] == ["no backward today"]

    @register_backend(fallback="never")
    def never(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        raise NotImplementedError("not on a Sunday")

    with pytest.raises(Exception, match="does not take program0_forward, nor does its fallback: not on a Sunday"):
        agrees(never)


def test_a_backend_is_given_plain_operations() -> None:
    graphs: list[GraphModule] = []

    def plain(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(lamina.compile(model, backend=plain)(x), model(x))
    ours = lamina.compile(model)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), model(x))
    assert ours.record.decisions("library epilogue")
    (calls,) = ([str(n.target) for n in gm.graph.nodes if n.op == "call_function"] for gm in graphs)
    assert calls == ["aten.convolution.default", "aten.relu.default"]


@pytest.mark.parametrize("graph", ["aten", "torch"])
def test_fallbacks_in_a_circle_end_in_an_error_that_names_them(graph: str) -> None:
    def no_sines(node: Node) -> str:
        return "no trigonometry" if "sin" in str(node.target) else ""

    register_backend(lambda gm, inputs: gm.forward, name="round", graph=graph, supports=no_sines, fallback="about")
    register_backend(lambda gm, inputs: gm.forward, name="about", graph=graph, supports=no_sines, fallback="round")
    compiled = lamina.compile(lambda x: x.sin(), backend="round")
    with pytest.raises(Exception, match=r"neither 'round' nor 'about' takes lambda0.*no trigonometry"):
        compiled(torch.randn(3))


class Tape:
    """A whole third-party backend: compiles each graph to a list of steps on numbered registers."""

    def __init__(self, gm: GraphModule) -> None:
        self.places = {node: number for number, node in enumerate(gm.graph.nodes)}
        self.steps = [n for n in gm.graph.nodes if n.op == "call_function"]
        self.inputs = [self.places[n] for n in gm.graph.find_nodes(op="placeholder")]
        (output,) = gm.graph.find_nodes(op="output")
        self.results = output.args[0]

    def __call__(self, *inputs: Any) -> list[Any]:
        values: dict[int, Any] = dict(zip(self.inputs, inputs, strict=True))

        def value(operand: Any) -> Any:
            return torch.fx.node.map_arg(operand, lambda n: values[self.places[n]])

        for step in self.steps:
            values[self.places[step]] = step.target(*value(step.args), **value(step.kwargs))
        return [value(result) for result in self.results]


def test_a_backend_that_only_knows_forward_trains() -> None:
    backend = Backend("tape", lambda gm, example_inputs: Tape(gm))
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 1))
    twin = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 1))
    twin.load_state_dict(model.state_dict())
    compiled = lamina.compile(model, backend=backend)
    x, y = torch.randn(32, 6), torch.randn(32, 1)
    for run, module in ((twin, twin), (compiled, model)):
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            nn.functional.mse_loss(run(x), y).backward()
            optimizer.step()
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=1e-4, atol=1e-5)
    assert {s.region for s in compiled.record.stages if s.name == "tape"} == {
        "Sequential0_forward",
        "Sequential0_backward",
    }


def test_writes_to_inputs_are_made_outside() -> None:
    seen = Seen()

    def update(total: Tensor, x: Tensor) -> Tensor:
        total.mul_(2).add_(x)
        return total.sum()

    compiled = lamina.compile(update, backend=Backend("pure", seen.compile))
    mine, theirs, x = torch.ones(4), torch.ones(4), torch.arange(4.0)
    for _ in range(2):
        assert torch.equal(compiled(mine, x), update(theirs, x))
        assert torch.equal(mine, theirs)
    assert "aten.copy_.default" not in seen.ops["inference"]


def test_strides_are_made_the_graphs_and_memory_of_inputs_is_not_given_away() -> None:
    def columns(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return lambda *inputs: [o.t().contiguous().t() if o.dim() == 2 else o for o in gm(*inputs)]

    def same(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return lambda x: [x]

    x = torch.randn(3, 4)
    result = lamina.compile(lambda x: x * 2, backend=columns)(x)
    assert result.stride() == (4, 1)
    assert torch.equal(result, x * 2)
    kept = lamina.compile(lambda x: x.clone(), backend=same)(x)
    assert torch.equal(kept, x)
    assert kept.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("graph", ["aten", "torch"])
@pytest.mark.parametrize(("made", "words"), [(None, r"nothing \(None\)"), (3, "a int, which cannot be called")])
def test_what_cannot_be_called_is_no_compiled_graph(made: Any, words: str, graph: str) -> None:
    def forgetful(gm: GraphModule, example_inputs: list[Any]) -> Any:
        return made

    line = forgetful.__code__.co_firstlineno
    with pytest.raises(Exception, match="LM012") as failure:
        lamina.compile(torch.sin, backend=Backend("mine", forgetful, graph=graph))(torch.ones(3))
    text = str(failure.value)
    assert re.search(rf"backend 'mine' has no compiled sin0\w*: its forgetful returned {words}", text)
    assert f"at test_backends.py:{line}" in text
    assert "return a function of the graph's inputs" in text


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"save": lambda compiled: None}, "backend 'mine' saved sin0_inference as a NoneType\n  at test_backends.py"),
        ({"load": lambda data, gm, inputs: None}, "has no compiled sin0_inference: its <lambda> returned nothing"),
    ],
    ids=["save", "load"],
)
def test_what_is_saved_and_loaded_is_checked(facts: dict[str, Any], words: str, tmp_path: Path) -> None:
    given = {"save": lambda compiled: b"", "load": lambda data, gm, inputs: gm.forward, **facts}
    mine = Backend("mine", lambda gm, inputs: gm.forward, version=words, **given)

    def run() -> None:
        for _ in range(2):  # saved, then loaded
            torch.compiler.reset()
            with torch.no_grad():
                lamina.compile(torch.sin, backend=mine, options={"cache_dir": str(tmp_path)})(torch.ones(3))

    with pytest.raises(Exception, match="LM012") as failure:
        run()
    assert words in str(failure.value)


def doubled_sigmoid(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return torch.sigmoid(x) * x, (x @ w)


def to_silu(gm: GraphModule) -> GraphModule:
    for node in gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        first, second = node.args
        if isinstance(first, Node) and first.target is aten.sigmoid.default and first.args[0] is second:
            with gm.graph.inserting_before(node):
                node.replace_all_uses_with(gm.graph.call_function(aten.silu.default, (second,)))
            gm.graph.erase_node(node)
    gm.graph.eliminate_dead_code()
    return gm


@pytest.mark.parametrize("then", ["aten", "lamina", "interp", "aot_eager", "eager"])
def test_passes_go_before_any_backend(then: str) -> None:
    changed: list[str] = []

    def spy(gm: GraphModule) -> GraphModule:
        changed.extend(str(n.target) for n in gm.graph.nodes)
        return gm

    agrees(compose(to_silu, spy, then=then), doubled_sigmoid)
    assert "aten.silu.default" in changed


def test_rules_and_passes_for_other_places_can_be_composed() -> None:
    seen = Seen()
    clamped = rule(lambda x: torch.relu(x) + 1, lambda x: x.clamp(min=0) + 1, name="clamped")
    noted: list[str] = []

    def captured(gm: GraphModule) -> GraphModule:
        noted.append("captured")
        return gm

    inner = compose(Passes(captured=captured), then=Backend("seen", seen.compile))
    backend = compose([clamped], then=inner, name="both")
    assert (backend.name, backend.rules, len(backend.passes.captured)) == ("both", (clamped,), 1)
    x = torch.randn(4)
    assert torch.equal(lamina.compile(lambda x: torch.relu(x) + 1, backend=backend)(x), torch.relu(x) + 1)
    assert "aten.clamp.default" in seen.ops["inference"]
    assert noted == ["captured"]


@pytest.mark.slow
def test_inductor_runs_behind_our_passes() -> None:
    agrees(compose(to_silu, then="inductor"), doubled_sigmoid)


def test_of_several_candidates_the_fastest_stays() -> None:
    def slow(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            for _ in range(200):
                gm(*inputs)
            return gm(*inputs)

        return run

    quick = Backend("quick", lambda gm, inputs: gm.forward)
    choosing = Backend("slow", slow, candidates=lambda gm, inputs: [quick])
    plain = agrees(choosing)
    assert not plain.record.decisions("candidate")
    torch.compiler.reset()
    compiled = agrees(choosing, mode="max-autotune")
    decisions = compiled.record.decisions("candidate")
    assert {d.subject[1]: d.taken for d in decisions} == {"slow": False, "quick": True}


def test_compiled_graphs_are_saved_and_loaded(tmp_path: Path) -> None:
    made: list[str] = []

    class Text:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def __call__(self, x: Tensor) -> list[Tensor]:
            return [x * self.factor]

    def compile(gm: GraphModule, example_inputs: list[Any]) -> Text:
        made.append("compiled")
        (mul,) = gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
        return Text(float(mul.args[1]))

    def load(data: bytes, gm: GraphModule, example_inputs: list[Any]) -> Text:
        made.append("loaded")
        return Text(float(data))

    keeping = Backend("text", compile, save=lambda run: str(run.factor).encode(), load=load, version="1")
    x = torch.randn(4)
    for backend, factor in ((keeping, 2.0), (keeping, 2.0), (keeping, 3.0), (keeping.replace(version="2"), 2.0)):
        torch.compiler.reset()
        options = {"cache_dir": str(tmp_path)}
        compiled = lamina.compile(lambda x, factor=factor: x * factor, backend=backend, options=options)
        assert torch.equal(compiled(x), x * factor)
    assert made == ["compiled", "loaded", "compiled", "compiled"]


def test_debug_and_count_print_what_they_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    agrees("debug")
    table = capsys.readouterr().out
    for word in ("program0_forward", "program0_backward", "aten.mm.default", "float32", "4x8", "test_backends.py"):
        assert word in table
    torch.compiler.reset()
    compiled = agrees("count")
    printed = capsys.readouterr().out
    assert "Graph: 5 ops, 1 fusable group (program0_forward)" in printed
    assert "fused: relu, mul.Tensor, _softmax, sum" in printed
    assert "library: mm.default" in printed
    assert next(s.value.ops for s in compiled.record.stages if s.name == "count") == 5


def test_control_flow_stays_in_the_outer_graph() -> None:
    def choosing(x: Tensor, w: Tensor) -> tuple[Tensor]:
        y = torch.sin(x @ w)
        return (torch.cond(y.sum() > 0, lambda y: y * 2, lambda y: y - 1, (y,)) @ w.t(),)

    seen = Seen()
    backend = Backend("no products", seen.compile, supports=lambda node: node.target is not aten.mm.default)
    compiled = lamina.compile(choosing, backend=backend)
    x, w = (t.detach() for t in arguments())
    torch.testing.assert_close(compiled(x, w), choosing(x, w))
    assert "aten.sin.default" in seen.ops["inference"]
    assert "aten.mm.default" not in seen.ops["inference"]


def test_results_of_captured_graphs_are_checked_too() -> None:
    def halved(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return lambda *inputs: [out.half() for out in gm(*inputs)]

    with pytest.raises(BackendFailed, match=r"output 0 is of torch\.float16, expected torch\.float32"):
        lamina.compile(torch.sin, backend=Backend("halved", halved, graph="torch"))(torch.ones(3))


def test_an_interpreter_of_torchs_is_a_backend() -> None:
    agrees(lambda gm, example_inputs: Interpreter(gm).run)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_a_mode_that_changes_nothing_on_a_cpu_is_told(mode: str) -> None:
    compiled = lamina.compile(lambda x: (x * 2 + 1).relu(), mode=mode)
    compiled(torch.randn(64, 64))
    told = [(d.taken, d.reason) for d in compiled.record.decisions("mode")]
    why = "mode 'reduce-overhead' is about GPUs, and this runs on the CPU"
    assert told == ([(False, why)] if mode == "reduce-overhead" else [])


def _one_memory(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """A backend that gives two tensors of one memory where the graph gives one value twice, or two equal ones."""

    def run(*inputs: Any) -> list[Any]:
        results = gm(*inputs)
        same: list[Any] = []
        for one in results:
            known = (k for k in same if isinstance(one, torch.Tensor) and k is not None and k.shape == one.shape)
            found = next((k for k in known if torch.equal(k, one)), None)
            same.append(one if found is None else found.view(found.shape))
        return same

    return run


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("backend", ["lamina", "interp", "aten", _one_memory], ids=lambda b: getattr(b, "__name__", b))
@pytest.mark.parametrize("function", [lambda a, b: a + b, lambda a, b: (a + b).exp(), lambda a, b: (a * 2, b * 2)])
def test_gradients_accumulate_on_their_own(backend: Any, function: Any) -> None:
    def accumulated(run: Any) -> list[Tensor]:
        leaves = [torch.linspace(-1, 1, 5).requires_grad_() for _ in range(2)]
        for _ in range(3):
            results = run(*leaves)
            sum(r.sum() for r in (results if isinstance(results, tuple) else (results,))).backward()
        leaves[0].grad.zero_()  # type: ignore[union-attr]
        return [leaf.grad for leaf in leaves]  # type: ignore[misc]

    torch._dynamo.reset()
    torch.testing.assert_close(accumulated(lamina.compile(function, backend=backend)), accumulated(function))


def test_progress_is_printed_on_a_terminal_by_the_first_rank(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said() -> bool:
        progress_printer("f0", "files")(1, 2, 30.0)
        return "f0: compiling kernels, 1/2 files, 30 s" in capsys.readouterr().err

    assert not said()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert said()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    assert not said()
