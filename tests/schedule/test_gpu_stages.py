"""How far ahead loops of GPU kernels read: as shared memory holds the tiles of every load."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.ir.plan import GpuSchedule
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.gpu_target import GpuTarget
from lamina.schedule.plan import make_plan
from tests.lower.torch_private import traced


def norm_backward(x: Tensor, y: Tensor, g: Tensor, stats: Tensor, w: Tensor) -> Any:
    return torch.ops.aten.native_layer_norm_backward(g, x + y, [768], stats, stats, w, w, [True, True, True])


def of_gathered(table: Tensor, places: Tensor, y: Tensor, g: Tensor, stats: Tensor, w: Tensor) -> Any:
    return norm_backward(table[places], y, g, stats, w)


@pytest.mark.parametrize(("shared", "stages"), [(227 << 10, 3), (24 << 10, 2), (18 << 10, 1)])
def test_rows_that_are_gathered_take_as_much_room_as_others(shared: int, stages: int) -> None:
    """Three tiles of 2 rows of 1024 halves, 12 KiB a stage, and 8 KiB for the reductions."""
    row, stats = torch.zeros(4096, 768, dtype=torch.bfloat16), torch.zeros(4096, 1)
    rest = (row, row, stats, torch.zeros(768, dtype=torch.bfloat16))
    target = GpuTarget("small", 8, shared_bytes=shared)
    for function, args in ((norm_backward, (row, *rest)), (of_gathered, (row, torch.zeros(4096).long(), *rest))):
        plan = make_plan(fuse(lower(traced(function, args), "test")), target)
        mixed = [s for k in plan.kernels for s in k.schedules if isinstance(s, GpuSchedule) and s.kind == "mixed"]
        assert [s.stages for s in mixed] == [stages]
