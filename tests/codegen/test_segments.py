"""Loops over the vector axis that are cut where a condition changes, and those that are left whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina
from benchmarks.patterns import private_copy


def _padded(x: Tensor) -> Tensor:
    return F.pad(x, (1, 1))


def _apart(x: Tensor) -> Tensor:
    """What of a pad's ends does not depend on zeros alone."""
    padded = _padded(x)
    return torch.tanh(padded - padded.amin(-1, keepdim=True))


def _joined(x: Tensor) -> Tensor:
    return torch.cat((x.exp(), x.atan()), -1) * 2


def _stores(compiled: Any) -> int:
    """How often a store is written out."""
    units = [unit for s in compiled.record.stages if s.name == "codegen" and s.value for unit in s.value]
    assert units
    return sum(line.lstrip().startswith("store_") for unit in units for line in unit.source.splitlines())


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("length", [3, 9, 30, 62, 128])
@pytest.mark.parametrize("function", [_padded, _apart, _joined])
def test_rows_of_any_length(function: Callable[[Tensor], Tensor], length: int, dtype: torch.dtype) -> None:
    x = torch.randn(70, length, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[3, 0], x[4, -1] = torch.nan, torch.inf
    compiled = lamina.compile(private_copy(function), dynamic=False, options={"compare_eager": "off", "verify": True})
    torch.testing.assert_close(compiled(x), function(x), equal_nan=True)


@pytest.mark.parametrize(("length", "pieces"), [(9, 1), (28, 1), (128, 3)])
def test_short_rows_are_not_cut_for_masks(length: int, pieces: int) -> None:
    """A piece of one element is a whole vector: a row of 11 numbers had three, of which tanh was computed."""
    x = torch.randn(400, length)
    compiled = lamina.compile(private_copy(_apart), dynamic=False, options={"compare_eager": "off"})
    torch.testing.assert_close(compiled(x), _apart(x))
    assert _stores(compiled) == pieces


def test_short_rows_are_cut_where_that_leaves_work_out() -> None:
    x = torch.randn(400, 9)
    compiled = lamina.compile(private_copy(_joined), dynamic=False, options={"compare_eager": "off"})
    torch.testing.assert_close(compiled(x), _joined(x))
    assert _stores(compiled) == 2
