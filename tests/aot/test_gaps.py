"""Results with gaps in their memory: what one graph hands over to another is laid out as both take it to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lamina
from lamina.testing.fuzz import unbacked

Function = Callable[[torch.Tensor, torch.Tensor], Any]


def _saved(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    v = torch.select_scatter(x, y, 0, 0)
    return v * v


def _saved_of_a_part(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    v = torch.slice_scatter(x, y[None], 0, 0, 1)[:, :1]
    return v.exp() * v


def _written_between_segments(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    v = x.detach()
    v.t()[0].neg_()
    return v.exp() * y * int(v.sum().item())


@pytest.mark.parametrize(
    ("function", "dynamic"), [(_saved, True), (_saved_of_a_part, False), (_written_between_segments, True)]
)
def test_what_is_handed_over_between_graphs(function: Function, dynamic: bool) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(function, dynamic=dynamic, options={"progress": False})
    found = []
    for called in (compiled, function):
        base = torch.arange(12.0).reshape(2, 6)
        y = torch.full((3,), 7.0, requires_grad=True)
        with unbacked():
            result = called(base[:, ::2], y)
        result.sum().backward()
        found.append((result.detach(), result.stride(), base, y.grad))
    torch.testing.assert_close(*found, rtol=1e-5, atol=0)


def test_elements_between_those_of_a_result_are_eagers_to_show() -> None:
    def between(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        v = torch.slice_scatter(x, y[None], 0, 0, 1)
        return v.as_strided((2, 2), (6, 2), 2) * 2

    torch.compiler.reset()
    x, y = torch.arange(12.0).reshape(2, 6)[:, ::2], torch.full((3,), 7.0)
    with pytest.warns(lamina.LaminaWarning, match="looks at memory beside its operand's elements"):
        assert torch.equal(lamina.compile(between)(x, y), between(x, y))
