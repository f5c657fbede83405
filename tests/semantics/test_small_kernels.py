"""Rows and columns of few elements through compiled kernels, exact in integers or small whole floats."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.compilers import CompileFunction

WIDTHS = [3, 8, 12, 24, 40, 67]
"""None of them whole vectors of every kind of processor."""


def _agree(compile: CompileFunction, function: object, *inputs: Tensor) -> None:
    ours, eager = compile(function)(*inputs), function(*inputs)  # type: ignore[operator]
    assert all(torch.equal(a, b) for a, b in zip(ours, eager, strict=True))


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_and_columns(compile: CompileFunction, width: int) -> None:
    def rows(x: Tensor) -> list[Tensor]:
        return [x.sum(1), x.sum(0), x.amax(1), x.amin(0), x * 2 + 1, x.sign().prod(1), x.cumsum(1)]

    _agree(compile, rows, torch.randint(1, 4, (6, width)).float() * torch.randint(0, 2, (6, width)).mul(2).sub(1))


@pytest.mark.parametrize("rows", [5, 7, 131, 135])
def test_sums_of_columns(compile: CompileFunction, rows: int) -> None:
    _agree(compile, lambda x: [x.sum(0), (x * 2).amax(0)], torch.randint(-9, 9, (rows, 24)).float())


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("width", WIDTHS)
def test_pieces_of_rows(compile: CompileFunction, width: int) -> None:
    def pieces(x: Tensor) -> list[Tensor]:
        joined = torch.cat([x[:, 1:] * 2, x[:, :1] - 3, x], 1)
        padded = [F.pad(x, (3, 5), value=7.0) * 3, F.pad(x * 2 + 1, (1, 2), value=7.0) - 1]
        return [joined + 1, *padded, torch.roll(x, 5, 1) + 1]

    _agree(compile, pieces, torch.randint(-9, 9, (4, width)).float())


@pytest.mark.parametrize("dim", [None, 0, 1])
def test_places_of_equals(compile: CompileFunction, dim: int | None) -> None:
    def places(x: Tensor) -> list[Tensor]:
        return [x.argmax(dim), x.argmin(dim), x.t().contiguous().argmax(dim)]

    x = torch.zeros(6, 40)
    for place in ((2, 3), (2, 30), (4, 3), (5, 39)):
        x[place] = 1.0
    x[3, 2] = x[1, 37] = -1.0
    _agree(compile, places, x)


def test_products(compile: CompileFunction) -> None:
    x = torch.randint(1, 3, (5, 13))
    _agree(compile, lambda x: [x.prod(), x.prod(1), x.prod(0), x.float().prod(1), (x > 0).all(1)], x)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16], ids=str)
def test_narrow_integers_wrap_before_they_are_compared_and_divided(
    compile: CompileFunction, dtype: torch.dtype
) -> None:
    def function(x: Tensor) -> list[Tensor]:
        return [x + 1 > x, (x + x) // 3, (x * 2).abs(), (x - 100).float(), (x + 100).long()]

    info = torch.iinfo(dtype)
    _agree(compile, function, torch.linspace(info.min, info.max, 67, dtype=torch.float64).to(dtype))
