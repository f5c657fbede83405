"""Gradients that are not there: nothing flows back from an output that no loss depends on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import lamina

WAYS: dict[str, dict[str, Any]] = {
    "sizes that are known": {"dynamic": False},
    "sizes that vary": {"dynamic": True},
    "eager's order": {"dynamic": False, "options": {"numerics": "eager"}},
}


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
    "a sum of both": lambda x, y: (x.sin(), (x.sin() + y).rsqrt()),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_output_without_a_gradient_adds_nothing(name: str, place: int, way: str) -> None:
    ours, eagers = (_gradients(PROGRAMS[name], place, how) for how in (WAYS[way], None))
    assert [g is None for g in ours] == [g is None for g in eagers]
    for mine, theirs in zip(ours, eagers, strict=True):
        if theirs is not None:
            torch.testing.assert_close(mine, theirs, equal_nan=True)


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


def test_a_second_backward_that_needs_nothing_saved_runs_as_in_eager() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2 + 1, y.exp()

    compiled = lamina.compile(function, dynamic=False)
    x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
    linear, curved = compiled(x, y)
    curved.sum().backward()
    linear.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    torch.testing.assert_close(y.grad, torch.ones(3).exp())
    with pytest.raises(RuntimeError, match="second time"):
        curved.sum().backward()


def _shifted(x: torch.Tensor) -> torch.Tensor:
    return x - 1 + x


def _scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize("function", [_shifted, _scaled])
def test_with_sizes_that_vary_a_second_backward_is_refused_where_eager_refuses_it(function: Any) -> None:
    compiled = lamina.compile(function, dynamic=True)
    for size in (3, 5):
        gradients = []
        for each in (compiled, function):
            x = torch.ones(2, size, requires_grad=True)
            loss = each(x).sum()
            loss.backward()
            with pytest.raises(RuntimeError, match="second time") if function is _scaled else nullcontext():
                loss.backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients)


def _viewed(x: torch.Tensor) -> torch.Tensor:
    return x.t().reshape(-1) - 1


def _broadcast(x: torch.Tensor) -> torch.Tensor:
    return (x[:1] + x).flatten()


def _written(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 1:].sub_(1)
    return y + x


@pytest.mark.parametrize("function", [_shifted, _viewed, _broadcast, _written])
def test_asking_what_eager_saves_adds_no_guard(function: Any) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(function, dynamic=True)
    torch._dynamo.utils.counters.clear()
    for size in (5, 7, 9, 4, 3):
        loss = compiled(torch.ones(3, size, requires_grad=True)).sum()
        loss.backward()
        loss.backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(("function", "taken"), [(_shifted, True), (_scaled, False)])
def test_the_record_says_whether_a_backward_may_run_again(function: Any, taken: bool) -> None:
    compiled: Any = lamina.compile(function, dynamic=True)
    compiled(torch.ones(2, 3, requires_grad=True)).sum().backward()
    decisions = compiled.record.decisions("second backward")
    assert [d.taken for d in decisions] == [taken]
