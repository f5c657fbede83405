"""Calls that one process stores and another loads: what has changed in between is noticed, whatever it is."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import lamina
from lamina.artefacts.front import stored_calls
from lamina.backends.compose import compose
from lamina.capture.frame_reasons import LOADED, NOT_STORED, STORED
from lamina.capture.own.callable import interpreted_callable
from lamina.record import Record
from lamina.runtime.cache import Cache
from tests.capture.own.changing_programs import Memory, stored_difference
from tests.processes import python

SOURCE = """
import math
import torch
from torch import nn
import torch.nn.functional as F

NUMBER = 2.0
ZERO = 0.0
PLACES = [1, 2]

class Meta(type):
    def __instancecheck__(cls, value):
        return False

class Scale:
    factor = 3.0
    def __init__(self, by):
        self.by = by
    def apply(self, x):
        return x * self.by * self.factor

class Wider(Scale):
    pass

scale = Wider(0.5)

def helper(x, k=4.0):
    return x * NUMBER + k

def bound(n):
    def inner(x):
        return x + n
    return inner

inner = bound(7.0)

def program(x):
    if isinstance(scale, Scale):
        x = scale.apply(x)
    return inner(helper(F.gelu(x))).relu() + math.copysign(1.0, ZERO) + len(PLACES)
"""
EDITS = {
    "the function": ("relu() + math", "tanh() + math"),
    "a function that it calls": ("x * NUMBER + k", "x * NUMBER - k"),
    "a default": ("k=4.0", "k=5.0"),
    "a global": ("NUMBER = 2.0", "NUMBER = 3.0"),
    "the type of a global": ("NUMBER = 2.0", "NUMBER = 2"),
    "the sign of zero": ("ZERO = 0.0", "ZERO = -0.0"),
    "the length of a list": ("PLACES = [1, 2]", "PLACES = [1, 2, 3]"),
    "a method": ("x * self.by * self.factor", "x * self.by + self.factor"),
    "an attribute of a base class": ("factor = 3.0", "factor = 4.0"),
    "an attribute of a class": ("class Wider(Scale):\n    pass", "class Wider(Scale):\n    factor = 1.0"),
    "the bases of a class": ("class Wider(Scale):", "class Wider(type('Between', (Scale,), {'factor': 9.0})):"),
    "the class of a class": ("class Scale:", "class Scale(metaclass=Meta):"),
    "an attribute of an object": ("Wider(0.5)", "Wider(0.25)"),
    "the class of an object": ("scale = Wider(0.5)", "scale = Scale(0.5); scale.factor = 2.0"),
    "a variable of another function": ("bound(7.0)", "bound(8.0)"),
    "an imported function": (
        "import torch.nn.functional as F",
        "import types\nF = types.SimpleNamespace(gelu=torch.tanh)",
    ),
    "a built-in function": ("NUMBER = 2.0", "NUMBER = 2.0\ndef len(x): return 11"),
    "a name of a built-in class": ("NUMBER = 2.0", "NUMBER = 2.0\ndef isinstance(x, y): return False"),
}
Load = Callable[[str], ModuleType]


@pytest.fixture(autouse=True)
def _no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has loaded no kernel yet: one that comes from another folder of the cache is not stored again."""
    monkeypatch.setattr("lamina.runtime.library._LOADED", {})
    monkeypatch.setattr("lamina.runtime.library._LIBRARIES", {})


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def load(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Load]:
    """Gives the module of a source, under one name, as another process would have it."""
    name = f"subject_{abs(hash(request.node.nodeid))}"

    def loaded(source: str) -> ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        exec(compile(source, str(path), "exec"), vars(module))
        return module

    yield loaded
    sys.modules.pop(name, None)


def _compiled(target: Any, cache: Path, **options: Any) -> Any:
    settings = {"capture": "own", "cache_dir": str(cache), "compare_eager": "off", **options}
    return lamina.compile(target, options=settings)


def _codes(compiled: Any) -> set[str]:
    return {decision.reason.code for decision in compiled.record.decisions("capture")}


def _is_loaded(compiled: Any) -> bool:
    return LOADED.number in _codes(compiled)


def _store(target: Any, cache: Path, *args: Any, **options: Any) -> None:
    """Have the calls of ``target`` stored: the second one stores the first."""
    compiled = _compiled(target, cache, **options)
    compiled(*args)
    compiled(*args)
    assert STORED.number in _codes(compiled) or _is_loaded(compiled), compiled.record.decisions("capture")


def _check(target: Any, cache: Path, loaded: bool, *args: Any, **options: Any) -> None:
    """A call by another process is right, and loads what is stored or does not."""
    compiled = _compiled(target, cache, **options)
    for _ in range(3):
        torch.testing.assert_close(compiled(*args), target(*args))
    assert _is_loaded(compiled) is loaded, compiled.record.decisions("capture")


def test_host_programs_are_stored_as_code_too(load: Load, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, x = load(SOURCE).program, torch.ones(4, 4)
    _store(program, cache, x)
    with monkeypatch.context() as patch:
        patch.setattr("lamina.artefacts.kernels.code_of", _not_again)
        patch.setattr("lamina.runtime.host.compile", _not_again, raising=False)
        compiled = _compiled(program, cache)
        torch.testing.assert_close(compiled(x), program(x))
        assert _is_loaded(compiled)


def _not_again(*given: Any) -> Any:
    raise AssertionError


MANY_MODULES = """
import torch
from torch import nn

class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(10))

    def forward(self, x):
        if (x > 9).any():
            return x
        for layer in self.layers:
            x = layer(x)
        return x
"""


def test_a_small_graph_that_is_not_compiled_is_stored(load: Load, cache: Path) -> None:
    model, x = load(MANY_MODULES).Blocks(), torch.ones(2, 4)
    with torch.no_grad():
        _store(model, cache, x)
        _check(model, cache, True, x)
        _check(model, cache, True, torch.full((2, 4), 10.0))


def test_what_is_unchanged_is_loaded(load: Load, cache: Path) -> None:
    x = torch.randn(5)
    _store(load(SOURCE).program, cache, x)
    _check(load(SOURCE).program, cache, True, x)
    _check(load(f"# moved\n\n{SOURCE}").program, cache, True, torch.randn(5))


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_noticed(load: Load, cache: Path, edit: str) -> None:
    x = torch.randn(5)
    before, after = EDITS[edit]
    assert before in SOURCE
    edited = SOURCE.replace(before, after)
    _store(load(SOURCE).program, cache, x)
    _check(load(edited).program, cache, False, x)
    _check(load(SOURCE).program, cache, True, x)


def test_other_inputs_are_noticed(load: Load, cache: Path) -> None:
    program = load(SOURCE).program
    x = torch.randn(5)
    _store(program, cache, x)
    for other in (
        torch.randn(6), torch.randn(10)[::2], x.double(), x.clone().requires_grad_(), torch.randn(6)[1:],
        nn.Parameter(x), torch.randn(5, dtype=torch.complex64).imag,
    ):  # fmt: skip
        _check(program, cache, False, other)


def test_the_state_of_torch_is_noticed(load: Load, cache: Path) -> None:
    program, x = load(SOURCE).program, torch.randn(5)
    _store(program, cache, x)
    with torch.no_grad():
        _check(program, cache, False, x)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        _check(program, cache, False, x)
    finally:
        torch.set_num_threads(before)
    torch.set_default_dtype(torch.float64)
    try:
        _check(program, cache, False, x)
    finally:
        torch.set_default_dtype(torch.float32)
    _check(program, cache, True, x)


def test_a_subclass_and_a_transform_are_noticed(load: Load, cache: Path) -> None:
    class Kind(Tensor):
        pass

    program, x = load(SOURCE).program, torch.randn(5)
    _store(program, cache, x)
    _check(program, cache, False, x.as_subclass(Kind))
    compiled = _compiled(program, cache)
    torch.testing.assert_close(torch.func.vmap(compiled)(torch.stack([x, x])), torch.stack([program(x)] * 2))
    assert not _is_loaded(compiled)


def test_options_are_noticed(load: Load, cache: Path) -> None:
    program, x = load(SOURCE).program, torch.randn(5)
    _store(program, cache, x)
    _check(program, cache, False, x, numerics="eager")
    _check(program, cache, False, x, without_rules=("silu of sigmoid",))


def test_a_patched_function_of_torchs_is_noticed(load: Load, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import math, torch\ndef program(x): return torch.relu(x) * math.floor(2.5)\n"
    x = torch.randn(5)
    _store(load(source).program, cache, x)
    with monkeypatch.context() as patch:
        patch.setattr(math, "floor", math.ceil)
        _check(load(source).program, cache, False, x)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "relu", torch.tanh)
        _check(load(source).program, cache, False, x)
    kept: Any = Tensor
    kept.__mul__ = Tensor.__add__  # which a base class has
    try:
        _check(load(source).program, cache, False, x)
    finally:
        del kept.__mul__
    _check(load(source).program, cache, True, x)


MODEL = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, width=6, bias=True):
        super().__init__()
        self.first, self.second = nn.Linear(4, width, bias=bias), nn.Linear(width, 3)
    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))
"""


def _trained(compiled: Any, model: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor]) -> list[Tensor]:
    model.zero_grad()
    out = compiled(x)
    torch.autograd.backward(loss(out))
    return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def test_a_model_is_trained_by_what_is_stored(load: Load, cache: Path) -> None:
    x, weights = torch.randn(5, 4), load(MODEL).Model().state_dict()
    losses: list[Callable[[Tensor], Tensor]] = [
        torch.sum, lambda y: (y * y).mean(), lambda y: y.t().reshape(-1).square().sum(),
    ]  # fmt: skip
    first = load(MODEL).Model()
    compiled = _compiled(first, cache)
    _trained(compiled, first, x, losses[0])
    _trained(compiled, first, x, losses[0])
    assert STORED.number in _codes(compiled)
    for loss in losses:  # the others have gradients of other strides than those of which the backward is stored
        model = load(MODEL).Model()
        model.load_state_dict(weights)
        compiled = _compiled(model, cache)
        for _ in range(2):
            torch.testing.assert_close(_trained(compiled, model, x, loss), _trained(model, model, x, loss))
        assert _is_loaded(compiled)


STEP = """
model = Model()

def have(settings):
    global optimizer
    optimizer = torch.optim.SGD(model.parameters(), **settings)

def step(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss
"""


def _double(parameter: Any) -> None:
    parameter.grad.mul_(2.0)


def _steps(module: ModuleType, step: Any, weights: Any, settings: dict[str, float], hooked: bool) -> list[Tensor]:
    """What four steps give, and leave of the model: values, and how often each was written to."""
    module.model.load_state_dict(weights)
    module.have(settings)
    if hooked:
        module.model.first.weight.register_post_accumulate_grad_hook(_double)
    torch.manual_seed(1)
    losses = [step(torch.randn(5, 4)).detach() for _ in range(4)]
    parameters = list(module.model.parameters())
    return [*losses, *(p.detach() for p in parameters), torch.tensor([p._version for p in parameters])]


@pytest.mark.parametrize("settings", [{"lr": 0.1}, {"lr": 0.1, "weight_decay": 0.01}])
def test_whole_training_steps_are_stored(load: Load, cache: Path, settings: dict[str, float]) -> None:
    source = f"{MODEL}\n{STEP}"
    weights = load(source).Model().state_dict()
    for stored, hooked in ((False, False), (True, False), (True, True)):
        module = load(source)
        expected = _steps(module, module.step, weights, settings, hooked)
        module = load(source)
        step = _compiled(module.step, cache)
        torch.testing.assert_close(_steps(module, step, weights, settings, hooked), expected)
        assert _is_loaded(step) is (stored and not hooked), [str(d.reason) for d in step.record.decisions("capture")]
        stored_calls(step).keep()


def test_backwards_that_follow_others_and_second_derivatives(load: Load, cache: Path) -> None:
    x = torch.randn(5, 4, requires_grad=True)
    first = load(MODEL).Model()
    compiled = _compiled(first, cache)
    compiled(x).sum().backward()
    compiled(x)
    model = load(MODEL).Model()
    compiled = _compiled(model, cache)
    out = compiled(x)
    assert _is_loaded(compiled)
    (once,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
    (again,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    (wanted,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    torch.testing.assert_close(once, wanted)
    torch.testing.assert_close(again, wanted)
    found, right = (torch.autograd.grad(one.square().sum(), x)[0] for one in (again, wanted))
    torch.testing.assert_close(found, right)
    out = compiled(x)
    out.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize(
    "make",
    [
        lambda module: module.Model(7),
        lambda module: module.Model(bias=False),
        lambda module: module.Model().double(),
        lambda module: module.Model().requires_grad_(False),
        lambda module: type("Model", (module.Model,), {"__module__": module.__name__})(),
        lambda module: module.Model().eval(),
    ],
)
def test_other_weights_and_classes(load: Load, cache: Path, make: Callable[[ModuleType], nn.Module]) -> None:
    _store(load(MODEL).Model(), cache, torch.randn(5, 4))
    model = make(load(MODEL))
    x = torch.randn(5, 4, dtype=next(model.parameters()).dtype)
    loaded = not model.training  # what it computes is the same
    compiled = _compiled(model, cache)
    torch.testing.assert_close(compiled(x), model(x))
    assert loaded or not _is_loaded(compiled)


def test_calls_that_eager_was_found_to_run_faster_are_not_loaded(load: Load, tmp_path: Path) -> None:
    x, options = torch.randn(5), {"capture": "own", "cache_dir": str(tmp_path), "compare_eager": "all"}
    compiled = lamina.compile(load(SOURCE).program, options=options)
    for _ in range(2):
        compiled(x)
    (entry,) = _entries(tmp_path)
    (verdict,) = json.loads((entry / "driver.json").read_text())["verdicts"]
    for eager in (False, True):
        Cache(tmp_path).write_note(verdict, {"kind": "turns", "eager": eager, "reason": "a test says so"})
        compiled = lamina.compile(load(SOURCE).program, options=options)
        torch.testing.assert_close(compiled(x), load(SOURCE).program(x))
        assert _is_loaded(compiled) is not eager
    assert not _entries(tmp_path)


def test_hooks_are_noticed(load: Load, cache: Path) -> None:
    x = torch.randn(5, 4)
    _store(load(MODEL).Model(), cache, x)
    model = load(MODEL).Model()
    model.first.register_forward_hook(lambda module, given, out: out + 1)
    _check(model, cache, False, x)


def test_two_functions_of_one_name(load: Load, cache: Path) -> None:
    source = "def make(k):\n    def program(x): return x.relu() * {} + k\n    return program\n"
    x = torch.randn(5)
    _store(load(source.format(2)).make(1), cache, x)
    _check(load(source.format(2)).make(2), cache, False, x)
    _check(load(source.format(3)).make(1), cache, False, x)
    _check(load(source.format(2)).make(1), cache, True, x)


def test_what_has_no_name_is_not_stored(load: Load, cache: Path) -> None:
    source = """
def make():
    class Local:
        def apply(self, x): return x.relu() * 2
    local = Local()
    return lambda x: local.apply(x)
"""
    compiled = _compiled(load(source).make(), cache)
    compiled(torch.ones(3))
    compiled(torch.ones(3))
    (decision,) = [d for d in compiled.record.decisions("capture") if d.reason.code == NOT_STORED.number]
    assert "Local" in decision.reason


def _entries(cache: Path) -> set[Path]:
    return {path.parent for path in cache.rglob("driver.json")}


@pytest.mark.parametrize("how", ["cut", "changed", "removed", "of others", "another document"])
def test_damaged_entries_are_not_used(load: Load, cache: Path, how: str) -> None:
    x, before = torch.randn(5), _entries(cache)
    _store(load(SOURCE).program, cache, x)
    (entry,) = _entries(cache) - before
    _check(load(SOURCE).program, cache, True, x)
    whole = {file.name: file.read_bytes() for file in entry.iterdir()}
    for name, kept in whole.items():
        if how == "another document" and name != "driver.json":
            continue
        file = entry / name
        if how == "cut":
            file.write_bytes(kept[:-2])
        elif how == "changed":
            file.write_bytes(bytes([kept[0] ^ 1]) + kept[1:])
        elif how == "removed":
            file.unlink()
        elif how == "of others":
            file.chmod(0o666)
        else:
            file.write_bytes(kept.replace(b"relu", b"tanh"))
        _check(load(SOURCE).program, cache, False, x)  # which stores the calls again
        _check(load(SOURCE).program, cache, True, x)


PROCESS = """
import sys, torch
sys.path.insert(0, {folder!r})
import lamina
from {name} import Model
torch.manual_seed(0)
model = Model()
compiled = lamina.compile(model, options={{"capture": "own", "cache_dir": {cache!r}, "compare_eager": "off"}})
x = torch.randn(5, 4)
out = compiled(x)
out.square().sum().backward()
compiler = {{"torch._dynamo", "sympy", "lamina.compile", "lamina.capture.own.machine", "lamina.ir"}}
loaded = sorted(compiler & set(sys.modules))
wanted = model(x)
grads = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
wanted.square().sum().backward()
torch.testing.assert_close(out, wanted)
torch.testing.assert_close(grads, [p.grad for p in model.parameters()])
print(*loaded)
"""


def _process(program: Sequence[str], tmp_path: Path) -> subprocess.Popen[str]:
    (tmp_path / "processes_model.py").write_text(MODEL)
    text = PROCESS.format(folder=str(tmp_path), name="processes_model", cache=str(tmp_path / "cache"))
    return subprocess.Popen([*program, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _said(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return out.strip()


def test_processes_at_once_and_one_after_them(tmp_path: Path) -> None:
    for process in [_process(python(), tmp_path), _process(python(), tmp_path)]:
        _said(process)
    assert _said(_process([sys.executable], tmp_path)) == ""  # neither compiler nor interpreter nor Dynamo was loaded


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_random_changes_between_processes(seed: int) -> None:
    outcome = stored_difference(seed)
    assert not outcome.told, f"{outcome.told}\n{outcome.text}"


def _by_a_number(x: Tensor, number: int) -> Any:
    x = x * 2
    return (x + 1 if number % 3 == 0 else x - 1), number * 2


def test_what_is_computed_of_numbers_is_asked_of_stored_calls() -> None:
    memory = Memory()

    def compiled() -> Any:
        return interpreted_callable(
            _by_a_number, backend_callable=lambda gm, fakes: gm.forward, record=Record(), store=memory.of
        )

    call, x = compiled(), torch.arange(4.0)
    for number in range(8):
        call(x, number)
    memory.keep()
    for number in (91, 93, 94, 300, -3):
        memory.uses = 0
        wanted, got = _by_a_number(x, number), compiled()(x, number)
        assert (got[0].tolist(), got[1]) == (wanted[0].tolist(), wanted[1])
        assert memory.uses == 1
    assert any("computed" in text for text in memory.texts)


def _tripled(gm: GraphModule) -> GraphModule:
    (output,) = gm.graph.find_nodes(op="output")
    (result,) = output.args[0]
    with gm.graph.inserting_before(output):
        tripled = gm.graph.call_function(torch.ops.aten.mul.Tensor, (result, 3.0))
        tripled.meta.update(result.meta)
    output.args = ((tripled,),)
    gm.recompile()
    return gm


@pytest.mark.parametrize("backend", ["interp", compose(_tripled, then="lamina")], ids=["interp", "composed"])
def test_other_backends_run_no_stored_calls(load: Load, cache: Path, backend: Any) -> None:
    _store(load(SOURCE).program, cache, torch.randn(5))
    settings = {"capture": "own", "cache_dir": str(cache), "compare_eager": "off", "strict": False}
    compiled = lamina.compile(load(SOURCE).program, backend=backend, options=settings)
    x = torch.randn(5)
    factor = 1 if backend == "interp" else 3
    torch.testing.assert_close(compiled(x), load(SOURCE).program(x) * factor)
    assert not _is_loaded(compiled)
