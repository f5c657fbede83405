"""Hooks of several results of which a backward brings gradients for some only: they are called as in eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.autograd.graph import register_multi_grad_hook

import lamina

Function = Callable[..., Sequence[torch.Tensor]]


def _independent(x: torch.Tensor) -> Sequence[torch.Tensor]:
    return x * 2, x.sin(), x + 1


def _one_of_two_inputs(x: torch.Tensor) -> Sequence[torch.Tensor]:
    return x[0] * 2, x.exp()[1]


def _with_integers(x: torch.Tensor) -> Sequence[torch.Tensor]:
    return x * 2, x.argmax(), x.t().cos()


def _dependent(x: torch.Tensor) -> Sequence[torch.Tensor]:
    made = x * 2
    return made, made.sin(), x.cos()


def _one_call(x: torch.Tensor) -> Sequence[torch.Tensor]:
    return torch.aminmax(x)


def _parts(x: torch.Tensor) -> Sequence[torch.Tensor]:
    return x.unbind(0)


def _seen(function: Function, which: int, register: Callable[[Sequence[torch.Tensor], list[Any]], None]) -> list[Any]:
    """What hooks saw in a backward of one result, and the gradient."""
    x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
    results = [t for t in function(x * 1) if t.requires_grad]
    found: list[Any] = []
    register(results, found)
    (results[which % len(results)] * 3).sum().backward()
    return [*found, x.grad.tolist() if x.grad is not None else None]


def _each(results: Sequence[torch.Tensor], found: list[Any]) -> None:
    for place, one in enumerate(results):
        one.register_hook(lambda g, place=place: found.append((place, None if g is None else g.tolist())))


def _removed(results: Sequence[torch.Tensor], found: list[Any]) -> None:
    handles = [one.register_hook(lambda g: found.append(g)) for one in results]
    for handle in handles:
        handle.remove()
    _each(results[::-1], found)


def _all_at_once(results: Sequence[torch.Tensor], found: list[Any]) -> None:
    register_multi_grad_hook(results, lambda grads: found.append([None if g is None else g.tolist() for g in grads]))


WAYS: list[dict[str, Any]] = [
    {},
    {"dynamic": True},
    {"options": {"numerics": "eager"}},
    {"options": {"capture": "own"}},
]


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("register", [_each, _removed, _all_at_once])
@pytest.mark.parametrize(
    "function",
    [_independent, _one_of_two_inputs, _with_integers, _dependent, _one_call, _parts],
    ids=lambda f: f.__name__,
)
def test_hooks_see_the_gradients_that_arrive(function: Function, register: Any, way: dict[str, Any]) -> None:
    for which in range(3):
        assert _seen(lamina.compile(function, backend="interp", **way), which, register) == _seen(
            function, which, register
        )


def test_a_hook_that_computes_with_its_gradient_does_not_fail() -> None:
    x = torch.ones(3, requires_grad=True)
    one, other = lamina.compile(lambda x: (x * 2, x * 3), backend="interp")(x)
    for result in (one, other):
        result.register_hook(lambda g: g * 10)
    one.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [20.0] * 3
