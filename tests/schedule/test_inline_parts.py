"""Costly values of which readers use parts are computed where the parts are read, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina

Program = Callable[..., Any]


def _costly(x: Tensor) -> Tensor:
    return torch.atan2(x, x * x + 1) * torch.tanh(x)


def picked(x: Tensor) -> Tensor:
    y = _costly(x)
    return torch.maximum(y.select(1, 1), y.select(1, 0))


def halves(x: Tensor) -> Tensor:
    a, b = _costly(x).chunk(2, 1)
    return a * torch.sigmoid(b)


def crossed(x: Tensor) -> Tensor:
    y = _costly(x)
    return y[:, 1:4].transpose(0, 1) + 1


def steps(x: Tensor) -> Tensor:
    y = _costly(x)
    return y[..., ::2] - 1


def whole(x: Tensor) -> tuple[Tensor, Tensor]:
    y = _costly(x)
    return y[:, :2] + 1, y.cumsum(0)


def overlapping(x: Tensor) -> Tensor:
    y = _costly(x)
    return y[1:] * y[:-1] + y[1:].square()


def row_blocks(x: Tensor) -> Tensor:
    y = _costly(x)
    return sum((y[..., k::8] for k in range(1, 8)), y[..., ::8])  # type: ignore[return-value]


def _inlined(program: Program, x: Tensor) -> tuple[list[bool], Any]:
    compiled = lamina.compile(program)
    result = compiled(x)
    torch.testing.assert_close(result, program(x))
    chosen = [d for s in compiled.record.stages for d in s.decisions if s.name == "fuse" and "parts" in d.reason]
    return [d.taken for d in chosen], compiled


@pytest.mark.parametrize("program", [picked, halves, crossed, steps], ids=lambda p: p.__name__)
def test_parts_are_computed_where_they_are_read(program: Program) -> None:
    taken, _ = _inlined(program, torch.randn(6, 10, 8))
    assert taken == [True] * len(taken)
    assert taken


def test_parts_that_are_read_element_by_element_are_stored() -> None:
    """Every eighth element of a row is loaded by itself: all of them in turn take longer than vectors stored once."""
    taken, _ = _inlined(row_blocks, torch.randn(6, 10, 64))
    assert not taken
    taken, _ = _inlined(lambda x: _costly(x)[..., ::8] - 1, torch.randn(6, 10, 64))
    assert taken
    assert all(taken)


@pytest.mark.parametrize("program", [whole, overlapping], ids=lambda p: p.__name__)
def test_what_is_read_more_than_once_is_stored(program: Program) -> None:
    """No reader may do the costly work for a place that another read computes as well."""
    taken, _ = _inlined(program, torch.randn(6, 10, 8))
    assert not taken
