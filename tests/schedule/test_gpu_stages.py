"""Loops of GPU kernels over rows: their tiles, and how far ahead they read, as shared memory holds every load's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.base.target import nvidia
from lamina.ir.plan import GpuSchedule
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan
from tests.lower.torch_private import traced


def norm_backward(x: Tensor, y: Tensor, g: Tensor, stats: Tensor, w: Tensor) -> Any:
    return torch.ops.aten.native_layer_norm_backward(g, x + y, [x.shape[-1]], stats, stats, w, w, [True, True, True])


def of_gathered(table: Tensor, places: Tensor, y: Tensor, g: Tensor, stats: Tensor, w: Tensor) -> Any:
    return norm_backward(table[places], y, g, stats, w)


@pytest.mark.parametrize(("shared", "stages"), [(227 << 10, 3), (24 << 10, 2), (18 << 10, 1)])
def test_rows_that_are_gathered_take_as_much_room_as_others(shared: int, stages: int) -> None:
    """Three tiles of 2 rows of 1024 halves, 12 KiB a stage, and 8 KiB for the reductions."""
    row, stats = torch.zeros(4096, 768, dtype=torch.bfloat16), torch.zeros(4096, 1)
    rest = (row, row, stats, torch.zeros(768, dtype=torch.bfloat16))
    target = nvidia("small", 8, shared_bytes=shared)
    for function, args in ((norm_backward, (row, *rest)), (of_gathered, (row, torch.zeros(4096).long(), *rest))):
        plan = make_plan(fuse(lower(traced(function, args), "test")), target)
        mixed = [s for k in plan.kernels for s in k.schedules if isinstance(s, GpuSchedule) and s.kind == "mixed"]
        assert [s.stages for s in mixed] == [stages]


@pytest.mark.parametrize(
    ("width", "dtype", "rows", "warps"),
    [(4096, torch.bfloat16, 1, 4), (2048, torch.bfloat16, 2, 4), (4096, torch.float32, 2, 8)],
)
def test_long_rows_whose_columns_are_reduced_too_begin_with_small_tiles(
    width: int, dtype: torch.dtype, rows: int, warps: int
) -> None:
    row, stats = torch.zeros(4096, width, dtype=dtype), torch.zeros(4096, 1)
    args = (row, row, row, stats, torch.zeros(width, dtype=dtype))
    plan = make_plan(fuse(lower(traced(norm_backward, args), "test")), nvidia())
    mixed = [s for k in plan.kernels for s in k.schedules if isinstance(s, GpuSchedule) and s.kind == "mixed"]
    assert [([b.size for b in s.blocks if b.role != "grid"], s.warps) for s in mixed] == [([rows, width], warps)]
