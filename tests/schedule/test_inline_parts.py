"""Costly values of which readers use parts are computed where the parts are read, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina
from lamina.schedule import inline_parts

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


def few_rows(x: Tensor) -> Tensor:
    y = _costly(x)
    return y[torch.tensor([4, 0, 4, 1])] + 1


def chain(x: Tensor) -> Tensor:
    """What is stored whole is read whole first; of the second value only parts are read, and so of the first."""
    y = torch.atan2(x, x * x + 1) * torch.erf(x)
    z = torch.hypot(y, torch.tanh(x) + 1)
    return z[..., ::2] + 1


def _inlined(program: Program, x: Tensor) -> tuple[list[bool], Any]:
    compiled = lamina.compile(program)
    result = compiled(x)
    torch.testing.assert_close(result, program(x))
    chosen = [d for s in compiled.record.stages for d in s.decisions if s.name == "fuse" and "parts" in d.reason]
    return [d.taken for d in chosen], compiled


def flattened(x: Tensor) -> Tensor:
    """Two rows of what lies otherwise in memory: their places are quotients and remainders."""
    rows = (_costly(x.transpose(1, 2)[..., :2]) + 1).flatten(1, 2)
    return rows[4] - rows[1]


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize(
    "program", [picked, halves, crossed, steps, few_rows, flattened, chain], ids=lambda p: p.__name__
)
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


def test_a_chain_of_which_parts_are_read_is_one_kernel() -> None:
    _, compiled = _inlined(chain, torch.randn(6, 10, 12))
    (plan,) = [s.value for s in compiled.record.stages if s.name == "plan"]
    assert len(plan.kernels) == 1


def test_single_places_of_long_rows_are_stored() -> None:
    """Read at one place of each row, elements lie apart: all places in turn are no parts but a sum over columns."""
    taken, _ = _inlined(lambda x: sum(_costly(x)[..., k] for k in range(12)), torch.randn(6, 10, 12))
    assert not taken


def test_readers_do_not_grow_without_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler takes minutes for what adds up hundreds of parts that are each computed in place."""
    monkeypatch.setattr(inline_parts, "_EQUATIONS", 4)
    taken, _ = _inlined(halves, torch.randn(6, 10, 8))
    assert not taken
