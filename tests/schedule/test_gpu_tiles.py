"""Tiles of GPU kernels where rows begin anywhere, sides are short, much is computed, or few columns are scanned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.base.target import nvidia
from lamina.ir.loops import Nest
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.gpu_split import spread
from tests.lower.torch_private import traced
from tests.schedule.test_gpu_split import blocks_of, meta, much, on

F32 = torch.float32


@pytest.mark.parametrize(("width", "stages"), [(13035, 1), (13056, 3)])
def test_columns_that_begin_anywhere_are_not_read_ahead(width: int, stages: int) -> None:
    """Through shared memory such rows go in pieces of four bytes: 340 us, and 80 without."""
    (sums, *_) = blocks_of(lambda x: (x.sum(0),), meta(2040, width, dtype=F32))
    assert sums.stages == stages


def test_rows_that_begin_anywhere_are_not_read_ahead() -> None:
    (moments, *_) = blocks_of(lambda x: (x * x.std((0, 2, 4), keepdim=True),), meta(96, 16, 13, 14, 129, dtype=F32))
    assert (moments.kind, moments.stages, moments.warps) == ("loops", 1, 16)


def test_columns_of_halves_that_begin_anywhere_are_not_read_ahead() -> None:
    (sums, *_) = blocks_of(lambda x: (x.float().sum(0),), meta(38400, 33))
    assert sums.stages == 1


def test_rows_that_go_on_along_another_axis_begin_nowhere_else() -> None:
    """Channels of a group beside those of the next, in channels-last memory: wide accesses after all."""
    x, w = meta(32, 4096, 32, 10), meta(32, 1, 32, 1)
    (sums, *_) = blocks_of(lambda x, w: ((x * w).float().sum(1),), x, w)
    assert sums.blocks[-1].axes != ("i3",)
    assert sums.stages == 3


def test_parts_are_unequal_where_equal_ones_are_too_few() -> None:
    """3543 rows, 55 times, in three parts each: 165 programs on 132 processors."""
    x, w = meta(55, 3543, 63, dtype=F32), meta(55, 1, 1, dtype=F32)
    program = on(fuse(lower(traced(lambda x, w: ((x * w).sum((0, 1)),), [x, w]), "t")).program, "cuda:0")
    first = spread(program, nvidia())[0].steps[0]
    assert isinstance(first, Nest)
    assert [a.extent.const for a in first.axes] == [55, 10, 355, 63]


def test_columns_that_would_be_read_again_are_held() -> None:
    (found,) = blocks_of(lambda x: (x.tanh().log_softmax(1),), meta(256, 597, 64, dtype=F32))
    assert [(b.size, b.role) for b in found.blocks] == [(1, "grid"), (1024, "whole"), (16, "grid")]
    assert found.warps == 8


def test_sides_of_turned_tiles_are_filled_and_threads_have_few_points() -> None:
    """76 points in sides of 64: two of five threads had none, the others 16."""
    x = torch.empty(512, 8, 75, 76, dtype=torch.bfloat16, device="meta").to(memory_format=torch.channels_last)
    y, line = meta(512, 8, 75, 76), meta(512, 8, 1, 76)
    (found,) = blocks_of(lambda x, y, line: (much(x, y) + y * line,), x, y, line)
    assert [b.size for b in found.blocks] == [4, 16, 8]
    assert found.warps == 4


def test_small_turned_tiles_of_which_much_is_computed_are_taken_together() -> None:
    """One in one warp: a processor holds 32 such."""
    x, y = meta(39270, 12, 12, dtype=F32).transpose(1, 2), meta(39270, 12, 12, dtype=F32)
    (found,) = blocks_of(lambda x, y: (much(x, y).sum(1),), x, y)
    assert [b.size for b in found.blocks] == [4, 16, 16]
    assert found.warps == 4


def test_few_columns_of_a_costly_scan_are_shared_by_enough_warps() -> None:
    """Eight columns in each of 263 programs of one warp left processors with two."""
    scans = blocks_of(lambda x: ((x[:, None] - x[None]).abs().logcumsumexp(0),), meta(700, 3, dtype=F32))
    (found,) = [s for s in scans if s.kind == "scan"]
    assert found.blocks[-1].size <= 2
    many = blocks_of(lambda x: (x.logcumsumexp(0),), meta(700, 132 * 1024, dtype=F32))
    assert all(s.blocks[-1].size >= 8 for s in many if s.kind == "scan")


def normalized(x: Tensor, w: Tensor) -> Any:
    y = x / (1 + w.abs())
    z = torch.nn.functional.normalize(torch.where(y > 0, y, 0.1 * y).exp().log1p() * y, dim=2) * y.abs().sqrt()
    return z / w, (z.sin() * y).sum(1)


@pytest.mark.parametrize(("rows", "width", "sizes"), [(5, 257, (1, 512, 4, 1)), (28, 768, (2, 1024, 8, 3))])
def test_rows_of_a_short_axis_whose_columns_are_reduced_too(
    rows: int, width: int, sizes: tuple[int, int, int, int]
) -> None:
    """Five rows in a tile of eight, half of each row, read ahead: 31 % of the points of one program a processor."""
    (found,) = blocks_of(normalized, meta(31347, rows, width, dtype=F32), meta(31347, 1, width, dtype=F32))
    assert found.kind == "mixed"
    assert (*[b.size for b in found.blocks if b.role != "grid"], found.warps, found.stages) == sizes
