"""A compiled function is entered another way than torch's wrapper enters it, and behaves like one of torch's."""

from __future__ import annotations

import inspect
import itertools
import os
import subprocess
import textwrap
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import eval_frame
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import lamina
from lamina.capture.dynamo import compile_callable
from lamina.capture.entry import torch_private as entry_names
from lamina.capture.entry.torch_private import _traced_by_this_thread
from tests.processes import python

KEYWORDS = inspect.signature(torch.compile).parameters
X = torch.arange(6.0).reshape(2, 3)
TALL = torch.arange(12.0).reshape(4, 3)


class Counting:
    """A backend that runs the captured graph as it is and counts graphs and calls of graphs."""

    def __init__(self) -> None:
        self.graphs = self.calls = 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.graphs += 1

        def run(*args: Any) -> Any:
            self.calls += 1
            return gm.forward(*args)

        return run


def by_torch(function: Any, backend: Any, **settings: Any) -> Any:
    return torch.compile(function, backend=backend, **settings)


def by_us(function: Any, backend: Any, **settings: Any) -> Any:
    return compile_callable(function, backend_callable=backend, **settings)


Compile = Callable[..., Any]


@pytest.fixture(params=[by_torch, by_us], ids=["torch", "lamina"])
def compile(request: pytest.FixtureRequest) -> Compile:
    """Either way: what is expected here of ours is what torch's wrapper does."""
    torch.compiler.reset()
    return request.param  # type: ignore[no-any-return]


def function(x: Tensor) -> Tensor:
    return x.sin() + 1


_lines = itertools.count(1000)


def fresh(source: Callable[..., Any] = function) -> Callable[..., Any]:
    """A function with a code object, and so graphs, of its own, at a place of its own."""
    code = source.__code__.replace(co_firstlineno=next(_lines))
    return type(source)(code, source.__globals__, source.__name__, source.__defaults__, source.__closure__)


_SETTERS = {
    "set_eval_frame": None,
    "set_skip_guard_eval_unsafe": False,
    "set_eval_frame_isolate_recompiles_id": -1,
    "set_fullgraph_error_on_nested_compile": False,
    "set_fullgraph_compiled_frame_count": -1,
    "set_eval_frame_override": getattr(getattr(torch._dynamo.eval_frame, "_EvalFrameOverride", None), "NONE", None),
}


def dynamos_state() -> dict[str, Any]:
    """What Dynamo has been told to do in this thread; each of its setters gives back the value that it replaces."""
    found = {}
    for name, neutral in _SETTERS.items():
        setter = getattr(torch._dynamo.eval_frame, name, None)
        if setter is not None:
            found[name] = setter(neutral)
            setter(found[name])
    if "set_eval_frame_isolate_recompiles_id" in found:  # a number for each function
        found["set_eval_frame_isolate_recompiles_id"] = found["set_eval_frame_isolate_recompiles_id"] >= 0
    return {**found, "generation": torch._dynamo.mutation_guard.GenerationTracker.generation}


def test_the_entry_is_ours_and_looks_like_the_function() -> None:
    def documented(x: Tensor, *, scale: float = 2.0) -> Tensor:
        """Scaled."""
        return x * scale

    compiled = by_us(documented, Counting())
    assert inspect.signature(compiled) == inspect.signature(documented)
    assert (compiled.__name__, compiled.__doc__) == ("documented", "Scaled.")
    theirs = by_torch(documented, Counting())
    assert compiled.__code__ is not theirs.__code__
    assert vars(compiled).keys() == vars(theirs).keys() | {"<compiled by Lamina>"}
    for target in (torch.nn.Linear(3, 3), type("Own", (torch.nn.Linear,), {})):
        ours = by_us(target, Counting())
        assert ours(X).shape == X.shape if isinstance(target, torch.nn.Module) else ours(3, 3)(X).shape == X.shape


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("dynamic", [None, False, True])
def test_graphs_are_made_and_found_again(compile: Compile, fullgraph: bool, dynamic: bool | None) -> None:
    backend = Counting()
    compiled = compile(fresh(), backend, fullgraph=fullgraph, dynamic=dynamic)
    for x in (X, X, TALL, X, TALL, torch.ones(6, 3), X.double()):
        assert torch.equal(compiled(x), function(x))
    assert backend.graphs == {None: 4, False: 4, True: 3}[dynamic]
    assert backend.calls == 7


def test_the_dynamic_setting_is_that_of_each_function(compile: Compile) -> None:
    """A function compiled for any sizes, called from an uncompiled part of one compiled for given sizes."""
    inner_backend, outer_backend = Counting(), Counting()
    inner = compile(fresh(), inner_backend, dynamic=True)

    def outer(x: Tensor) -> Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return call(y) * 2

    @torch.compiler.disable
    def call(y: Tensor) -> Tensor:
        return inner(y)

    compiled = compile(outer, outer_backend, dynamic=False)
    for x in (X, TALL):
        assert torch.equal(compiled(x), function(x + 1) * 2)
    assert inner_backend.graphs == 1
    assert outer_backend.graphs == 4


def test_grad_mode_and_autocast_are_part_of_what_is_compiled(compile: Compile) -> None:
    backend = Counting()
    compiled = compile(fresh(lambda x: x @ x.T), backend)
    weight = X.clone().requires_grad_()
    assert compiled(weight).requires_grad
    with torch.no_grad():
        assert not compiled(weight).requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(weight).dtype == torch.bfloat16
    with torch.inference_mode():
        assert compiled(weight).is_inference()
    assert compiled(weight).dtype == torch.float32
    assert backend.graphs == 4


def test_nested_functions_are_captured_in_one_graph(compile: Compile) -> None:
    inner_backend, outer_backend = Counting(), Counting()
    inner = compile(fresh(), inner_backend)
    compiled = compile(lambda x: inner(x) * 2, outer_backend, fullgraph=True)
    assert torch.equal(compiled(X), function(X) * 2)
    assert (inner_backend.graphs, outer_backend.graphs) == (0, 1)


def test_a_compiled_function_compiled_again_belongs_to_the_last(compile: Compile) -> None:
    first, second = Counting(), Counting()
    compiled = compile(compile(fresh(), first), second)
    assert torch.equal(compiled(X), function(X))
    assert (first.calls, second.calls) == (0, 1)


def test_graph_breaks(compile: Compile) -> None:
    inner_backend, outer_backend = Counting(), Counting()
    inner = compile(fresh(), inner_backend, fullgraph=True)
    seen = []

    def outer(x: Tensor) -> Tensor:
        y = x.cos()
        seen.append(float(y.sum()))
        torch._dynamo.graph_break()
        return inner(y) - 1

    def eager(x: Tensor) -> Tensor:
        return function(x.cos()) - 1

    compiled = compile(outer, outer_backend)
    for _ in range(3):
        assert torch.equal(compiled(X), eager(X))
    assert len(seen) == 3
    assert outer_backend.graphs >= 2
    assert inner_backend.graphs == 0  # captured with the rest of its caller


def test_called_from_a_frame_that_is_not_compiled(compile: Compile) -> None:
    """A frame in which Dynamo is at work but which it left: a generator."""
    inner_backend, outer_backend = Counting(), Counting()
    inner = compile(fresh(), inner_backend)
    inner(X)
    helper = fresh(lambda x: x.tan())

    def results(x: Tensor) -> Any:
        for _ in range(2):
            torch._dynamo.graph_break()
            yield helper(inner(x))

    compiled = compile(lambda x: list(results(x)), outer_backend)
    frames = torch._dynamo.utils.counters["frames"]
    frames.clear()
    for _ in range(2):
        assert all(torch.equal(y, function(X).tan()) for y in compiled(X))
    assert (inner_backend.graphs, outer_backend.graphs) == (1, 1)
    assert frames["total"] == 2


def test_disabled(compile: Compile) -> None:
    backend = Counting()
    compiled = compile(torch.compiler.disable(fresh()), backend)
    assert torch.equal(compiled(X), function(X))
    compiled = compile(fresh(), backend)
    assert torch.equal(torch.compiler.disable(compiled)(X), function(X))
    assert backend.graphs == 1


def test_stances(compile: Compile) -> None:
    backend = Counting()
    compiled = compile(fresh(), backend, dynamic=False)
    with torch.compiler.set_stance("force_eager"):
        assert torch.equal(compiled(X), function(X))
        assert backend.graphs == 0
    compiled(X)
    with torch.compiler.set_stance("eager_on_recompile"):
        assert torch.equal(compiled(X), function(X))
        assert torch.equal(compiled(TALL), function(TALL))
        assert (backend.graphs, backend.calls) == (1, 2)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(compiled(X), function(X))
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            compiled(TALL)
    with torch.compiler.set_stance("default", force_backend="eager"):
        assert torch.equal(compiled(X), function(X))
        assert backend.calls == 3
    with torch.compiler.set_stance("eager_then_compile"):
        other = compile(fresh(), backend)
        other(X)
        assert (backend.graphs, backend.calls) == (1, 3)
        other(TALL)
        assert backend.graphs == 2
    torch.compiler.set_stance("default")
    assert torch.equal(compiled(TALL), function(TALL))
    assert backend.graphs == 3


def test_a_stance_that_skips_guards_holds_until_another_one_does(compile: Compile) -> None:
    inner_backend = Counting()
    inner = compile(fresh(lambda x: x + len(x)), inner_backend, dynamic=False)
    warm = False

    @torch.compiler.disable
    def with_guards(x: Tensor) -> Tensor:
        if not warm:
            return x
        with torch.compiler.set_stance("default"):
            return inner(x)

    def outer(x: Tensor) -> Tensor:
        y = x + 0
        torch._dynamo.graph_break()
        return with_guards(y)

    compiled = compile(outer, Counting(), dynamic=False)
    assert torch.equal(compiled(X), X)
    warm = True
    with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
        assert torch.equal(compiled(X), X + 2)
        with pytest.raises(RuntimeError, match="skip_guard_eval_unsafe"):
            compile(fresh(), Counting())(X)
    assert torch.equal(compiled(TALL), TALL + 4)
    assert inner_backend.graphs == 2


def test_errors_pass_and_leave_nothing_behind(compile: Compile) -> None:
    backend = Counting()

    def fails(x: Tensor, wrong: bool) -> Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        if wrong:
            raise KeyError("mine")
        return y * 2

    compiled = compile(fails, backend)
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            compiled(X, True)
    assert torch.equal(compiled(X, False), (X + 1) * 2)
    graphs = backend.graphs
    assert torch.equal(function(X), X.sin() + 1)  # Dynamo is off: nothing is captured
    assert backend.graphs == graphs
    with pytest.raises(TypeError):
        compiled()
    assert torch.equal(compiled(X, wrong=False), (X + 1) * 2)


def test_errors_in_the_graph(compile: Compile) -> None:
    def fails(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            if torch.__version__ >= "2.12":  # torch 2.11 itself fails to leave it
                torch._C._functorch._grad_increment_nesting()
            torch.set_autocast_enabled("cpu", True)
            raise ValueError("in the graph")

        return run

    compiled = compile(fresh(), fails, fullgraph=True)
    state = dynamos_state()
    before = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for _ in range(2):
        with pytest.raises(ValueError, match="in the graph"):
            compiled(X)
        assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0
        if torch.__version__ >= "2.13":
            after = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
            assert after == before
        torch.set_autocast_enabled("cpu", False)
        assert {**dynamos_state(), "generation": 0} == {**state, "generation": 0}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("ask", [lambda x: x.shape[2], lambda x: x.shape[1:][3], lambda x: x.stride(4)])
def test_a_dimension_that_is_not_there_is_refused_in_eagers_words(ask: Callable[[Tensor], int], strict: bool) -> None:
    def asks(x: Tensor) -> Tensor:
        return x * 2 + ask(x)

    messages = []
    for called in (lamina.compile(asks, backend="interp", options={"strict": strict}), asks):
        with pytest.raises(IndexError) as error:
            called(X)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_errors_of_dynamo_and_of_backends(compile: Compile) -> None:
    def breaks(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x + 1

    compiled = compile(breaks, Counting(), fullgraph=True)
    for _ in range(2):
        with pytest.raises(torch._dynamo.exc.Unsupported) as unsupported:
            compiled(X)
        assert len(unsupported.traceback) == 2  # this function and the entry: nothing of Dynamo

    def fails(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        raise ValueError("in the backend")

    compiled = compile(fresh(), fails)
    for _ in range(2):
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="in the backend"):
            compiled(X)


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return op(*args, **(kwargs or {}))


def test_a_whole_graph_that_is_not_made_is_told(compile: Compile) -> None:
    compiled = compile(fresh(), Counting(), fullgraph=True)
    told: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with Mode():
                compiled(X)
        except RuntimeError as error:
            told.append(str(error))
    told += [str(w.message) for w in caught if "no compiled frames" in str(w.message)]
    if torch.__version__ >= "2.13":
        assert "no compiled frames" in told[0]


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("within", [None, False, True])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_dynamos_state_is_that_of_torchs_wrapper(fullgraph: bool, within: bool | None, strict: bool) -> None:
    """While a graph runs and after it, within a call of another function or not."""

    def states(compile: Compile) -> list[dict[str, Any]]:
        torch.compiler.reset()
        found: list[dict[str, Any]] = []

        def note(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
            def run(*args: Any) -> Any:
                found.append(dynamos_state())
                return gm.forward(*args)

            return run

        compiled = compile(fresh(), note, fullgraph=fullgraph)
        if within is not None:

            def calls(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
                def run(*args: Any) -> Any:
                    compiled(X)
                    found.append(dynamos_state())
                    return gm.forward(*args)

                return run

            isolated = {"isolate_recompiles": True} if "isolate_recompiles" in KEYWORDS else {}
            called = by_torch(fresh(), calls, fullgraph=within, **isolated)
        else:
            called = compiled
        with torch._dynamo.config.patch(error_on_dynamo_callback_in_fullgraph_compiled_code=strict):
            for _ in range(3):
                called(X)
                found.append(dynamos_state())
        first = found[0]["generation"]
        return [{**state, "generation": state["generation"] - first} for state in found]

    assert states(by_us) == states(by_torch)


def test_traces_of_other_kinds(compile: Compile) -> None:
    backend = Counting()
    compiled = compile(fresh(), backend)
    with pytest.raises(RuntimeError, match="symbolically trace"):
        torch.fx.symbolic_trace(compiled)
    with pytest.raises(RuntimeError, match=r"torch\.jit\.trace"):
        torch.jit.trace(compiled, (X,), check_trace=False)

    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return compiled(x) * 2

    exported = torch.export.export(Module(), (X,)).module()
    assert torch.equal(exported(X), function(X) * 2)
    assert backend.graphs == 0
    assert torch.equal(compiled(X), function(X))
    assert backend.graphs == 1


def test_function_transforms(compile: Compile) -> None:
    compiled = compile(fresh(), Counting())
    assert torch.allclose(torch.func.vmap(compiled)(X), function(X))
    assert torch.allclose(torch.func.grad(lambda x: compiled(x).sum())(X), X.cos())
    over = compile(lambda x: torch.func.vmap(function)(x), Counting())
    assert torch.allclose(over(X), function(X))


@pytest.mark.parametrize("warm", [False, True])
def test_forward_mode_differentiation(warm: bool) -> None:
    """Dynamo does not ask whether tensors carry tangents, which kernels would drop."""
    torch.compiler.reset()
    linear = torch.nn.Linear(3, 3)
    for source in (lambda x: x.sin() * x, linear):
        compiled = lamina.compile(source)
        if warm:
            compiled(X)
        with torch.no_grad(), torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(X, torch.ones_like(X))
            expected = torch.autograd.forward_ad.unpack_dual(source(dual)).tangent
            actual = torch.autograd.forward_ad.unpack_dual(compiled(dual)).tangent
        torch.testing.assert_close(actual, expected)
        captured = len(compiled.record.stages)
        torch.testing.assert_close(compiled(X), source(X))
        assert warm == (captured == len(compiled.record.stages))
        _, tangent = torch.func.jvp(compiled, (X,), (torch.ones_like(X),))
        torch.testing.assert_close(tangent, expected)


def test_fake_tensors_have_no_memory_for_kernels() -> None:
    torch.compiler.reset()
    compiled = lamina.compile(fresh())
    with FakeTensorMode() as mode:
        made = compiled(torch.ones(2, 3))
        assert isinstance(made, FakeTensor)
        assert made.shape == (2, 3)
        with_gradient = compiled(torch.ones(2, 3, requires_grad=True))
        assert isinstance(with_gradient, FakeTensor)
    assert compiled(mode.from_tensor(X)).shape == X.shape
    assert torch.allclose(compiled(X), function(X))


def test_what_a_function_was_called_with_is_not_kept() -> None:
    torch.compiler.reset()
    compiled = lamina.compile(fresh())
    for grad in (False, True):
        x = torch.ones(2, 3, requires_grad=grad)
        alive = weakref.ref(x)
        y = compiled(x)
        if grad:
            y.sum().backward()
        del x, y
        assert alive() is None
    lines = repr(compiled.record).splitlines()
    assert len(lines) == 1 + len(compiled.record.stages)
    assert "capture" in lines[1]


def test_a_folder_for_stages_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    torch.compiler.reset()
    (tmp_path / "file").touch()
    compiled = lamina.compile(fresh(), options={"dump_dir": str(tmp_path / "file" / "stages")})
    with pytest.raises(Exception, match=r"LM001 BadArgument: the option dump_dir is (.|\n)* do: name a folder"):
        compiled(X)


def test_functions_do_not_dump_over_one_another(tmp_path: Path) -> None:
    torch.compiler.reset()
    for function in (lambda x: x.sin(), lambda x: x.cos()):
        lamina.compile(function, options={"dump_dir": str(tmp_path)})(X)
    first, second = (folder / "000_capture" / "00_capture.py" for folder in (tmp_path, tmp_path / "function2"))
    assert "sin" in first.read_text(encoding="utf-8")
    assert "cos" in second.read_text(encoding="utf-8")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is POSIX's")
def test_a_forked_process_compiles() -> None:
    """In a program of its own; the parent's threads do not live on in the child."""
    program = textwrap.dedent("""
        import os, signal, torch, lamina
        compiled = lamina.compile(lambda x: x.sin() + 1, dynamic=False)
        x, y = torch.ones(3), torch.ones(5)
        compiled(x)
        child = os.fork()
        if not child:
            signal.alarm(60)
            os._exit(0 if torch.allclose(compiled(y), y.sin() + 1) and torch.allclose(compiled(x), x.sin() + 1) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.allclose(compiled(y), y.sin() + 1)
    """)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*python(), "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_modules_made_while_a_function_runs(compile: Compile) -> None:
    """Dynamo treats modules made by the call in progress otherwise than older ones: both give what eager gives."""
    backend = Counting()

    def makes(x: Tensor, module: torch.nn.Module | None) -> Tensor:
        if module is None:
            module = torch.nn.Softplus()
            torch._dynamo.graph_break()
        return module(x) + 1

    compiled = compile(makes, backend)
    module = torch.nn.Softplus()
    for given in (None, module, None, module):
        assert torch.equal(compiled(X, given), torch.nn.functional.softplus(X) + 1)


@pytest.mark.by_dynamo("is about the wrapper around Dynamo's graphs")
def test_modules_of_torchs_own_classes_are_compiled_however_many_there_are() -> None:
    """Torch compiles eight of them in a process: all share the code of one frame."""
    torch._dynamo.reset()  # graphs of modules like these
    for extra in range(10):
        module = torch.nn.Sequential(torch.nn.Linear(3 + extra, 4), torch.nn.ReLU())
        compiled, x = lamina.compile(module), torch.randn(2, 3 + extra)
        torch.testing.assert_close(compiled(x), module(x))
        assert [stage.name for stage in compiled.record.stages].count("capture") == 1
        assert list(compiled.state_dict()) == list(module.state_dict())


@pytest.mark.by_dynamo("is about the wrapper around Dynamo's graphs")
def test_modules_of_torchs_own_classes_that_are_alike_share_a_graph() -> None:
    torch._dynamo.reset()  # graphs of modules like these
    x, captures = torch.randn(2, 3), []
    for width in (4, 4, 5, 4):
        module = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.ReLU())
        for compiled in (lamina.compile(module), lamina.compile(module)):
            torch.testing.assert_close(compiled(x), module(x))
            captures.append(compiled.stats().graphs)
    assert captures == [1, 0, 0, 0, 1, 0, 0, 0]


def test_lazy_modules_and_classes(compile: Compile) -> None:
    backend = Counting()
    lazy = compile(torch.nn.LazyLinear(2), backend)
    assert lazy(X).shape == (2, 2)
    made = compile(type("Own", (torch.nn.Linear,), {}), backend)(3, 2)
    assert made(X).shape == (2, 2)
    assert backend.graphs >= 1


@pytest.mark.by_dynamo("is about the wrapper around Dynamo's graphs")
@pytest.mark.parametrize("as_graphs", [False, True])
def test_hooks_on_saved_tensors_need_no_other_graph(as_graphs: bool) -> None:
    """The tensors that a compiled function saves pass through the caller's hooks, whatever kind these are."""
    torch.compiler.reset()
    record = None

    def doubled(x: Tensor) -> Tensor:
        return x * 2

    pack: Any = torch.fx.symbolic_trace(doubled) if as_graphs else doubled
    for compiled in (by_us(fresh(), (counting := Counting())), lamina.compile(fresh())):
        record = getattr(compiled, "record", record)
        x = X.clone().requires_grad_()
        plain = torch.autograd.grad(compiled(x).sum(), x)[0]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            hooked = torch.autograd.grad(compiled(x).sum(), x)[0]
        assert torch.allclose(plain, X.cos())
        assert torch.allclose(hooked, (2 * X).cos())
    assert counting.graphs == 1
    assert record is not None
    assert len([stage for stage in record.stages if stage.name == "capture"]) == 1


@pytest.mark.by_dynamo("is about the wrapper around Dynamo's graphs")
def test_what_a_region_calls_is_not_captured() -> None:
    """But for a compiled function, which is entered from there as from anywhere else."""
    torch.compiler.reset()
    calls = []
    inner_backend = Counting()
    inner = by_us(fresh(), inner_backend, fullgraph=True)

    def implementation(x: Tensor) -> Tensor:
        calls.append(torch.compiler.is_compiling())
        return inner(x.cos()) + x

    def eager(x: Tensor) -> Tensor:
        return function(x.cos()) + x

    op = torch.library.custom_op(
        "lamina_tests::entered", implementation, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    op.register_fake(torch.empty_like)

    def calls_it(x: Tensor) -> Tensor:
        y = op(x)
        torch._dynamo.graph_break()
        return op(y) * 2

    before = set(calls_it.__globals__)
    compiled = lamina.compile(calls_it)
    for _ in range(3):
        assert torch.allclose(compiled(X), eager(eager(X)) * 2)
    assert (inner_backend.graphs, inner_backend.calls) == (1, 6)
    assert calls == [False] * 6
    assert len([stage for stage in compiled.record.stages if stage.name == "capture"]) == 2
    made = [v for k, v in calls_it.__globals__.items() if k.startswith("__compiled_fn") and k not in before]
    ours = [graph for graph in made if getattr(graph, "never_captured", False)]
    assert len(ours) == 2
    assert not any(hasattr(graph, "_torchdynamo_disable") for graph in ours)  # without torch's wrapper


def test_threads() -> None:
    """Functions are called while others are compiled, each thread for the first time.

    Torch 2.11 keeps one flag for all threads that a whole graph runs, and its wrapper leaves it set, for good, when two
    threads return out of turn; so does ours.
    """
    torch.compiler.reset()
    backend = Counting()
    warm = by_us(fresh(), backend, fullgraph=not torch.__version__.startswith("2.11"))
    warm(X)
    errors: list[BaseException] = []
    stop = threading.Event()

    def call() -> None:
        try:
            while not stop.is_set():
                assert torch.equal(warm(X), function(X))
        except BaseException as error:
            errors.append(error)

    def compile_others() -> None:
        try:
            for scale in range(10):
                one = by_us(fresh(lambda x, scale=scale: x * scale), backend)
                assert torch.equal(one(X), X * scale)
        except BaseException as error:
            errors.append(error)
        finally:
            stop.set()

    threads = [threading.Thread(target=target) for target in (call, call, compile_others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert backend.graphs == 11


def test_a_whole_graph_ends_its_own_count_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's count of compiled frames is one for all threads: what one has ended is the next one's to end."""
    count = entry_names._set_count
    if count is None:
        pytest.skip("this torch counts no compiled frames")
    at_end, may_end = threading.Event(), threading.Event()
    errors: list[BaseException] = []
    calls = 0

    def run_other() -> None:
        try:
            second(X)
        except BaseException as error:
            errors.append(error)

    def in_turn(number: int) -> int:
        if threading.current_thread() is other:
            if number == -1 and not at_end.is_set():
                at_end.set()
                assert may_end.wait(60)
            return count(number)  # type: ignore[no-any-return]
        before: int = count(number)
        if calls == 1 and number == -1 and not at_end.is_set():  # ended, and the other call begins
            other.start()
            assert at_end.wait(60)
        if calls == 2 and number == 0:
            may_end.set()
            other.join()
        return before

    monkeypatch.setattr(entry_names, "_set_count", in_turn)
    first, second = (by_us(fresh(), Counting(), fullgraph=True) for _ in range(2))
    other = threading.Thread(target=run_other)
    first(X)
    second(X)
    calls = 1
    assert torch.equal(first(X), function(X))
    assert at_end.is_set()
    assert eval_frame.dynamo_tls.skip_reasons is None
    calls = 2
    assert torch.equal(first(X), function(X))
    assert not errors


def test_a_compilation_of_another_thread_begins_while_one_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag of FX is read while the lock is held: that of the next compilation is not taken for this thread's."""
    flag = torch.fx._symbolic_trace

    class Lock:
        def acquire(self, blocking: bool = True) -> bool:
            flag._is_fx_tracing_flag = False  # the compilation that went on has ended
            return True

        def release(self) -> None:
            flag._is_fx_tracing_flag = True  # and another one begins

    monkeypatch.setattr(flag, "_is_fx_tracing_flag", True)
    monkeypatch.setattr("lamina.capture.entry.torch_private.compile_lock", Lock())
    assert not _traced_by_this_thread()


@pytest.mark.parametrize("asked", [False, True])
def test_a_wrapper_that_was_not_checked_is_left_alone(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = by_torch(fresh(), Counting())
    backend = Counting()
    if not asked:
        monkeypatch.setattr("lamina.capture.entry.torch_private._READ_SOURCES", frozenset())
    ours = by_us(fresh(), backend, entry="torch" if asked else "lamina")
    assert ours.__code__ is theirs.__code__
    assert torch.equal(ours(X), function(X))
    assert backend.graphs == 1


def test_tangents_behind_torchs_own_wrapper() -> None:
    compiled = torch.compile(lambda x: x.sin() * 2, backend="lamina")
    x = torch.randn(8)
    for _ in range(2):  # compiled before the level, and found again after it
        assert torch.allclose(compiled(x), x.sin() * 2)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones(8))
            found = torch.autograd.forward_ad.unpack_dual(compiled(dual))
            assert torch.allclose(found.primal, x.sin() * 2)
            assert found.tangent is not None
            assert torch.allclose(found.tangent, x.cos() * 2)


def _chain(x: Tensor) -> Tensor:
    for lengths in ((-1, 6), (2, -1, 4), (8, -1)) * 6:
        x = x.reshape(lengths)
    return x.sum(0)


@pytest.mark.by_dynamo("is about the wrapper around Dynamo's graphs")
def test_sizes_are_fixed_where_capture_asks_too_long_of_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.capture.fixed_sizes.torch_private.SECONDS_FOR_SIZES", 0.2)
    compiled = lamina.compile(_chain, dynamic=True, options={"strict": True})
    for rows in (96, 192):
        x = torch.arange(rows * 8.0)
        assert compiled(x).equal(_chain(x))
    (decision,) = compiled.record.decisions("fixed sizes")
    assert decision.taken
    assert "_chain" in decision.subject[0]
