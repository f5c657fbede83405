"""Gradients that are not there: nothing flows back from an output that no loss depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lamina
from tests.aot.backwards import in_turn

WAYS: dict[str, dict[str, Any]] = {
    "sizes that are known": {"dynamic": False},
    "sizes that vary": {"dynamic": True},
    "eager's order": {"dynamic": False, "options": {"numerics": "eager"}},
}


def _writes_past_autograd(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    memory = y.detach()
    memory[0] = -1.5
    return x * 2, memory + x, x.exp()


def _writes_to_data(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.data.mul_(2)
    return x.exp()


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("way", [{}, *WAYS.values()])
@pytest.mark.parametrize("function", [_writes_past_autograd, _writes_to_data])
def test_an_input_written_to_past_autograd_gets_no_gradient(function: Any, way: dict[str, Any]) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(function, **way)
    for size in (3, 5):
        for before in (False, True):
            found = []
            for each in (compiled, function):
                x, y = (torch.ones(size, requires_grad=True) for _ in range(2))
                results = each(x, y * 1 if before else y)
                sum(r.sum() for r in (results if isinstance(results, tuple) else (results,))).backward()
                found.append((x.grad, y.grad, y.detach()))
            torch.testing.assert_close(*found)


def _gradients(function: Callable[..., Any], place: int, way: dict[str, Any] | None) -> tuple[torch.Tensor | None, ...]:
    """The gradients of the inputs for the output at ``place`` alone; compiled in some ``way``, or by eager."""
    called = function if way is None else lamina.compile(function, **way)
    inputs = [torch.tensor([0.0, 1.0, 2.0]), torch.tensor([3.0, -1.0, 0.5])]
    for x in inputs:
        x.requires_grad_()
    called(*inputs)[place].sum().backward()
    return tuple(x.grad for x in inputs)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "a derivative that is infinite": lambda x, y: (x * 2 + y, x.reciprocal() * y),
    "a root": lambda x, y: (x.sqrt() + y, x * y),
    "an input of one output only": lambda x, y: (x * 2, y.exp()),
    "parts of a concatenation": lambda x, y: torch.cat((x, y)).split(3),
    "a maximum": lambda x, y: (torch.maximum(x, y), x.log() + y),
    "a sum of both, of several layouts": lambda x, y: ((x.view(1, 3) + y).t(), x.view(3, 1).reciprocal().t()),
    "a sum of both": lambda x, y: (x.sin(), (x.sin() + y).rsqrt()),
}


@pytest.mark.sampled(one_in=14)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_output_without_a_gradient_adds_nothing(name: str, place: int, way: str) -> None:
    ours, eagers = (_gradients(PROGRAMS[name], place, how) for how in (WAYS[way], None))
    assert [g is None for g in ours] == [g is None for g in eagers]
    for mine, theirs in zip(ours, eagers, strict=True):
        if theirs is not None:
            torch.testing.assert_close(mine, theirs, equal_nan=True)


def test_a_gradient_that_is_zero_whatever_arrives_is_there() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.detach().mul_(2)
        return torch.copysign(y, x)

    compiled = lamina.compile(function, backend="interp")
    for each in (compiled, function):
        x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
        each(x, y).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("way", WAYS)
def test_outputs_with_and_without_gradients_take_turns(way: str) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x.reciprocal()

    compiled = lamina.compile(function, **WAYS[way])
    for wanted in ((0,), (1,), (0, 1), (0,), (0, 1), (1,)):
        ours, eagers = (torch.tensor([0.0, 1.0, 2.0], requires_grad=True) for _ in range(2))
        torch.stack([compiled(ours)[i] for i in wanted]).sum().backward()
        torch.stack([function(eagers)[i] for i in wanted]).sum().backward()
        torch.testing.assert_close(ours.grad, eagers.grad)


def test_a_sum_of_gradients_of_several_layouts_reads_nothing_that_was_freed() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x - 1, (x + y).t(), x.exp(), torch.cat((x, y)).split(2)[1]

    torch.compiler.reset()
    compiled = lamina.compile(function, dynamic=True)
    for size in (3, 5):
        for wanted in [((1,), (1, 2), (1,)), ((0, 2), (3,), (1,))]:
            found = []
            for each in (compiled, function):
                leaves = [torch.ones(2, size, requires_grad=True) for _ in range(2)]
                found.append(in_turn(each(*leaves), leaves, wanted, False))
            torch.testing.assert_close(*found)
            assert found[0][-1] is not None


def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


_doubled = torch.library.custom_op("lamina_tests::doubled_somewhere_else", _double, mutates_args=())
_doubled.register_fake(torch.empty_like)
_doubled.register_autograd(lambda ctx, gradient: _doubled(gradient))

BESIDE_A_ROOT: dict[str, Callable[..., Any]] = {
    "more outputs than layouts": lambda x: tuple(x * k for k in range(1, 9)),
    "strides that are given": lambda x: (x.as_strided((2, 2), (1, 1)) * 2,),
    "a user's operation": lambda x: (_doubled(x),),
}


@pytest.mark.sampled(one_in=8)
@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", BESIDE_A_ROOT)
def test_each_output_by_itself_leaves_the_others_out(name: str, way: str, expanded: bool) -> None:
    """A gradient that is not there is none, however many others came before it and however those that are lie."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.sqrt(), *BESIDE_A_ROOT[name](x))

    torch.compiler.reset()
    compiled = lamina.compile(function, **WAYS[way])
    for place in range(1, len(function(torch.ones(4)))):
        found = []
        for each in (compiled, function):
            x = torch.tensor([0.0, 1.0, 2.0, 3.0], requires_grad=True)
            result = each(x)[place]
            one = torch.ones(()).expand(result.shape) if expanded else torch.ones(result.shape)
            result.backward(one)
            found.append(x.grad)
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("capture", ["dynamo", "own"])
def test_a_gradient_that_is_the_same_whatever_arrives_is_there(capture):
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x * 2
        signed = torch.copysign(torch.ones(3), made)
        return made, signed, signed * 3, y.sin()

    compiled = lamina.compile(program, options={"capture": capture})
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    _, signed, more, _ = compiled(x, y)
    (signed * more).sum().backward()
    assert x.grad is not None
    assert not x.grad.any()
    assert y.grad is None


@pytest.mark.parametrize("written", [False, True])
def test_a_result_that_a_library_wrote_counts_as_changed_only_if_somebody_wrote_to_it(written):
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x @ x.t()  # saved for the gradient of the next, and a result, which the library has as its ``out``
        return made, torch.nn.functional.linear(made, made), torch.nn.functional.mse_loss(y, y)

    x, y = torch.ones(2, 17, requires_grad=True), torch.ones(17, requires_grad=True)
    made, last, _ = lamina.compile(program)(x, y)
    y.detach().zero_()  # which the backward of the third result reads
    if written:
        made.detach().zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            last.sum().backward()
    else:
        last.sum().backward()
        expected = x.detach().clone().requires_grad_()
        program(expected, y)[1].sum().backward()
        assert torch.equal(x.grad, expected.grad)
