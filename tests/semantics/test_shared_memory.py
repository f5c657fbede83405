"""Arguments that share memory in some calls, inputs written before the backward, and inputs that are detached."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina
from lamina.errors import LaminaWarning
from tests.fuzz.memory import MemoryProgram, memory_program


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lamina.LaminaWarning)
        yield
    torch.compiler.reset()


def _scaled(x: Tensor, y: Tensor) -> Tensor:
    y.mul_(2)
    return x + y


Views = Callable[[], tuple[Tensor, Tensor]]
APART: Views = lambda: (torch.arange(4.0), torch.arange(4.0) + 1)  # noqa: E731
SHARED: dict[str, Views] = {
    "overlapping": lambda: _two(torch.arange(8.0), slice(0, 4), slice(2, 6)),
    "the same elements": lambda: _two(torch.arange(8.0), slice(2, 6), slice(2, 6)),
    "other halves": lambda: _two(torch.arange(8.0), slice(0, 4), slice(4, 8)),
    "by turns": lambda: _two(torch.arange(8.0), slice(0, 8, 2), slice(1, 8, 2)),
    "a view": lambda: _same(torch.arange(4.0), lambda t: t.view(4)),
    "detached": lambda: _same(torch.arange(4.0), lambda t: t.detach()),
    "reversed order": lambda: _two(torch.arange(8.0), slice(2, 6), slice(0, 4)),
    "from a larger tensor": lambda: (torch.arange(16.0)[:4], torch.arange(4.0)),
}


def _two(base: Tensor, first: slice, second: slice) -> tuple[Tensor, Tensor]:
    return base[first], base[second]


def _same(x: Tensor, view: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    return x, view(x)


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("writes", ["first", "second"])
@pytest.mark.parametrize(
    ("name", "dynamic"), [*((name, None) for name in SHARED), ("overlapping", True), ("other halves", True)]
)
def test_arguments_that_share_memory_in_one_call_only(name: str, dynamic: bool | None, writes: str) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return _scaled(y, x) if writes == "first" else _scaled(x, y)

    for order in ([APART, SHARED[name], APART], [SHARED[name], APART, SHARED[name]]):
        torch.compiler.reset()
        compiled = lamina.compile(function, dynamic=dynamic)
        for make in order:
            eager, ours = make(), make()
            assert torch.equal(compiled(*ours), function(*eager))
            for a, b in zip(ours, eager, strict=True):
                assert torch.equal(_whole(a), _whole(b))


def _whole(x: Tensor) -> Tensor:
    """All of the memory that ``x`` lies in."""
    count = x.untyped_storage().nbytes() // x.element_size()
    return x.as_strided((count,), (1,), 0)


@pytest.mark.by_dynamo("asks for the words of Dynamo's warning")
def test_a_call_with_shared_memory_is_told_once_and_its_like_are_compiled_otherwise() -> None:
    compiled = lamina.compile(_scaled)
    compiled(*APART())
    with pytest.warns(lamina.LaminaWarning, match="shares memory with another"):
        compiled(*SHARED["overlapping"]())
    with warnings.catch_warnings():
        warnings.simplefilter("error", lamina.LaminaWarning)
        compiled(*SHARED["overlapping"]())
    assert any("shares memory" in d.reason for d in compiled.record.decisions("eager"))


def test_the_own_front_end_tells_of_calls_made_one_by_one() -> None:
    compiled = lamina.compile(_scaled, options={"capture": "own"})
    for given in ("apart", "overlapping", "overlapping"):
        compiled(*(APART() if given == "apart" else SHARED[given]()))
        told = [one for one in compiled.record.decisions("capture") if "shares memory" in one.reason]
        assert len(told) == (given != "apart")


def test_a_first_call_with_shared_memory_does_not_keep_others_from_kernels() -> None:
    compiled = lamina.compile(_scaled)
    compiled(*SHARED["overlapping"]())
    compiled(*APART())
    assert any(hasattr(stage.value, "kernel_count") for stage in compiled.record.stages)


def _twice(a: Tensor) -> None:
    torch._foreach_add_([a, a.view(2, 2).view(4)], 1.0)


TWICE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "one tensor twice": lambda a, b: torch._foreach_add_([a, a], 1.0),
    "each with the other": lambda a, b: torch._foreach_add_([a, b], [b, a]),
    "each with itself": lambda a, b: torch._foreach_add_([a, b], [a, b]),
    "views of one": lambda a, b: torch._foreach_mul_([a, a.view(2, 2)], 3.0),
    "what returns its operand and its view": lambda a, b: _twice(torch.dropout(a, 0.0, True)),
    "what is switched off and its view": lambda a, b: _twice(F.alpha_dropout(a, 0.5, False)),
    "what a method returns and its view": lambda a, b: _twice(a.contiguous()),
    "parts of one": lambda a, b: torch._foreach_mul_([a[:3], a[2:]], 3.0),
}


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("name", TWICE)
def test_lists_of_tensors_that_share_memory(name: str) -> None:
    ours, eager = (torch.arange(4.0), torch.ones(4)), (torch.arange(4.0), torch.ones(4))
    lamina.compile(TWICE[name])(*ours)
    TWICE[name](*eager)
    assert [t.tolist() for t in ours] == [t.tolist() for t in eager]


def _shift(k: Tensor) -> None:
    k[1:] = k[:-1]


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "add_ of the transpose": lambda x: x.add_(x.t()),
    "copy_ of the transpose": lambda x: x.copy_(x.t()),
    "mul_ of a part": lambda x: x[1:].mul_(x[:-1]),
    "shift": _shift,
    "out": lambda x: torch.add(x[:-1], 1.0, out=x[1:]),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", REFUSED)
def test_writes_that_eager_refuses_are_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match="single memory location"):
        REFUSED[name](torch.ones(3, 3))
    x = torch.ones(3, 3)
    with pytest.raises(RuntimeError, match="single memory location"):
        lamina.compile(REFUSED[name])(x)
    assert torch.equal(x, torch.ones(3, 3))


ALIVE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda x, b: torch.relu(x + b) * 2,
    "layer norm": lambda x, b: F.layer_norm(x + b, (4,)).sigmoid(),
    "gelu": lambda x, b: F.gelu(x + b),
    "softmax": lambda x, b: (x - b).softmax(-1),
    "tanh of a sum": lambda x, b: torch.tanh(x + 2 * b).exp(),
}


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize(
    ("name", "kind", "dynamic"),
    [
        *((name, "constant", None) for name in ALIVE),
        ("relu", "constant", True),
        ("relu", "non-leaf", None),
        ("relu", "non-leaf", True),
        ("gelu", "leaf first", None),
    ],
)
def test_an_input_that_eager_does_not_save_may_be_written_to_before_the_backward(
    name: str, kind: str, dynamic: bool | None
) -> None:
    function = ALIVE[name]
    compiled = lamina.compile(function, dynamic=dynamic)
    x, start = torch.randn(3, 4), torch.randn(4)
    gradients = []
    if kind == "leaf first":
        compiled(x.clone().requires_grad_(), start.clone().requires_grad_()).sum().backward()
    for run in (function, compiled):
        a, b = x.clone().requires_grad_(), start.clone().requires_grad_(kind != "constant")
        inner = b * 1
        y = run(a, inner)
        with torch.no_grad():
            inner.zero_()
        y.sum().backward()
        gradients.append([a.grad, b.grad])
    torch.testing.assert_close(gradients[1], gradients[0])


WRITES = {
    "data": lambda p: p.data.mul_(2),
    "detach": lambda p: p.detach().zero_(),
    "no grad": lambda p: _without_gradients(p.neg_),
}
OF_LEAVES = {
    "gelu of a sum": (lambda x, w, b: F.gelu(x + b) * w, (0, 2)),
    "bias of a product": (lambda x, w, b: F.gelu(x @ torch.ones(8, 8) + b) + w, (0, 1, 2)),
    "two functions": (lambda x, w, b: x.exp().sigmoid() + w.exp().sigmoid() + b, (0, 1, 2)),
    "activation of a norm": (lambda x, w, b: F.silu(F.group_norm(x, 1, w, b)), (2,)),
    "norm and relu": (lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True)).tanh(), (2,)),
    "sum and tanh": (lambda x, w, b: torch.relu(x * 2 + b).tanh() + w, (0, 1, 2)),
}


def _without_gradients(function: Callable[[], object]) -> None:
    with torch.no_grad():
        function()


@pytest.mark.sampled(one_in=20)
@pytest.mark.parametrize("numerics", ["fast", "eager"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", OF_LEAVES)
def test_a_leaf_that_eager_does_not_save_may_be_written_to_before_the_backward(
    name: str, write: str, numerics: str
) -> None:
    function, places = OF_LEAVES[name]
    compiled = lamina.compile(function, options={"numerics": numerics})
    torch.manual_seed(0)
    start = [torch.randn(8, 8), torch.randn(8), torch.randn(8)]
    for place in places:
        gradients = []
        for run in (function, compiled):
            leaves = [x.clone().requires_grad_() for x in start]
            y = run(*leaves)
            WRITES[write](leaves[place])
            y.square().sum().backward()
            gradients.append([x.grad for x in leaves])
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)


def test_an_input_that_eager_saves_may_not() -> None:
    compiled = lamina.compile(lambda x, b: x * b)
    a, b = torch.randn(4, requires_grad=True), torch.randn(4)
    y = compiled(a, b)
    b.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_a_detached_input_is_outside_of_autograd(dynamic: bool | None, numerics: str) -> None:
    weight = torch.randn(3, requires_grad=True)
    compile = lambda f: lamina.compile(f, dynamic=dynamic, options={"numerics": numerics})  # noqa: E731
    generator = compile(lambda z: (z * weight).exp())
    discriminator = compile(lambda e, v: (e.detach() * v).sum())
    v = torch.randn(3, requires_grad=True)
    made = generator(torch.randn(3))
    made.sum().backward()
    discriminator(made, v).backward()
    torch.testing.assert_close(v.grad, made.detach())


def test_two_losses_of_one_module_go_back_one_after_the_other() -> None:
    def both(e: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return (e.detach() * v).sum(), (e * 2).sum()

    e0, v = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    e = e0.exp()
    first, second = lamina.compile(both)(e, v)
    (first + second).backward()
    torch.testing.assert_close(v.grad, e.detach())
    torch.testing.assert_close(e0.grad, 2 * e.detach())


def test_an_input_written_to_and_needed_by_the_backward_is_kept() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(w)
        return x * 2

    w, x = torch.randn(3, requires_grad=True), torch.randn(3)
    before = x.clone()
    y = lamina.compile(function)(x, w)
    (y.sum() + x.sum()).backward()
    torch.testing.assert_close(w.grad, 3 * before)


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("seed", range(12))
def test_programs_with_shared_memory(seed: int) -> None:
    _check(seed)


@pytest.mark.slow
def test_many_programs_with_shared_memory() -> None:
    for seed in range(12, 2000):
        torch.compiler.reset()
        _check(seed)


def _check(seed: int) -> None:
    program: MemoryProgram = memory_program(random.Random(seed))
    compiled = lamina.compile(program.function)
    for number, call in enumerate(program.calls):
        eager, ours = call(program.function), call(compiled)
        assert ours == eager, f"seed {seed}, call {number}:\n{program.source}"


@pytest.mark.parametrize("apart_first", [True, False])
def test_parts_of_one_tensor_with_a_history_have_one_version(apart_first: bool) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        return (x * y).sum()

    def gradient(called: Callable[..., Tensor], apart: bool) -> Tensor | None:
        base = torch.arange(8.0, requires_grad=True)
        whole = base * 2
        called(whole[:4], (base * 3)[4:] if apart else whole[4:]).backward()
        return base.grad

    torch.compiler.reset()
    compiled = lamina.compile(function)
    for apart in (apart_first, not apart_first, apart_first):
        torch.testing.assert_close(gradient(compiled, apart), gradient(function, apart))


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_write_to_shared_memory_raises_the_version_of_what_is_written_to(dynamic: bool | None) -> None:
    def function(x: Tensor, y: Tensor, step: int) -> Tensor:
        y[::step] = 0
        return x

    compiled = lamina.compile(function, backend="interp", dynamic=dynamic)
    for size, step, one in ((4, 1, True), (4, 2, False), (1, 3, True), (5, 1, True)):
        raised = []
        for each in (compiled, function):
            x = torch.ones(size, size)
            y = x.detach() if one else x.clone()
            each(x, y, step)
            raised.append((x._version > 0, y._version > 0))
        assert raised[0] == raised[1]


def test_arguments_that_share_memory_beside_a_float_that_varies() -> None:
    def function(x: Tensor, y: Tensor, factor: float) -> Tensor:
        x[-1] *= 2
        return y * factor

    compiled = lamina.compile(function, options={"strict": True})
    for factor in (2.0, 3.0, 4.0):
        for shared in (lambda x: x, lambda x: x[:], lambda x: x.clone()):
            ours, eagers = torch.ones(4), torch.ones(4)
            assert torch.equal(compiled(shared(ours), ours, factor), function(shared(eagers), eagers, factor))
            assert torch.equal(ours, eagers)


def test_parts_of_one_tensor_beside_another_tensor_have_kernels() -> None:
    def function(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        x.add_(y)
        return x * z

    whole, other = torch.arange(8.0), torch.ones(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LaminaWarning)
        result = lamina.compile(function)(whole[:4], whole[4:], other)
    assert whole.tolist() == [4, 6, 8, 10, 4, 5, 6, 7]
    assert result.tolist() == [4, 6, 8, 10]
