"""Inputs that get another memory inside of a compiled function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina


def _exchanged(x: Tensor, y: Tensor) -> Tensor:
    x.data, y.data = y.data, x.data
    return x + y * 2


def _shortened(x: Tensor, y: Tensor) -> Tensor:
    x.data = x.data[1:]
    x.add_(1)
    return x * 2


def _kept(x: Tensor, y: Tensor) -> Tensor:
    before = x.data
    x.data = y * 2
    return before


def _viewed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    before = x[1:]
    x.data = y * 2
    return before, x


def _written(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    before = x.data
    x.data = y * 2
    before.add_(1)
    return before, x


def _given(x: Tensor, y: Tensor) -> Tensor:
    x.data = y.data
    return x + 1


def _doubled(x: Tensor, y: Tensor) -> Tensor:
    x.data = x.data * 2
    return x + 1


@pytest.mark.parametrize("function", [_exchanged, _shortened, _kept, _viewed, _written, _given, _doubled])
@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_inputs_and_results_have_the_memory_that_they_have_in_eager(
    function: Callable[..., Any], numerics: str
) -> None:
    def shown(run: Callable[..., Any]) -> tuple[list[Any], list[list[bool]]]:
        x, y = torch.arange(3.0), torch.arange(3.0) + 5
        result = run(x, y)
        tensors = [*(result if isinstance(result, tuple) else (result,)), x, y]
        places = [t.untyped_storage().data_ptr() for t in tensors]
        return [t.tolist() for t in tensors], [[one == other for other in places] for one in places]

    compiled = lamina.compile(function, options={"numerics": numerics, "strict": True})
    assert shown(compiled) == shown(function)


@pytest.mark.parametrize("function", [_given, _doubled])
def test_what_has_one_memory_before_and_one_after_is_compiled(function: Callable[..., Any]) -> None:
    compiled = lamina.compile(function, options={"strict": True})
    compiled(torch.arange(3.0), torch.arange(3.0))
    assert not compiled.record.decisions("eager")


def _parts_of_what_is_given(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.data = y * 2
    return x.unbind(0)


def _parts_of_parts(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.data = y * 2
    return x[1:].split(2)[1][None].unbind(1)


def _detached_parts(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.data = y.data
    v = x.detach()
    return v.t(), v.tensor_split(2)[0], v


def _parts_without_gradients(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.data = y * 2
    with torch.no_grad():
        return x.view(-1), x.hsplit(2)[0]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize(
    "function", [_parts_of_what_is_given, _parts_of_parts, _detached_parts, _parts_without_gradients]
)
def test_results_in_memory_that_an_input_gets_are_views_as_in_eager(
    function: Callable[..., Any], leaf: bool, dynamic: bool | None
) -> None:
    """They share versions with the input, and autograd refuses the same writes."""

    def shown(run: Callable[..., Any]) -> list[Any]:
        found: list[Any] = []
        for written in (-1, 0, 1):
            x, y = (torch.arange(16.0).view(4, 4) + k for k in range(2))
            x = x.requires_grad_() if leaf else x.requires_grad_() * 1
            results = run(x, y)
            tensors = [*results, x, y]
            results[0].detach().add_(1)
            found.append([t._version for t in tensors])
            try:
                tensors[written].mul_(2)
                results[0] * 1
            except RuntimeError as error:
                found.append(str(error))
            found += [[t._version for t in tensors], [t.requires_grad for t in tensors], [t.tolist() for t in tensors]]
        return found

    torch.compiler.reset()
    assert shown(lamina.compile(function, dynamic=dynamic, options={"strict": True})) == shown(function)
