"""Instructions of a nest's tiles by schedule, and the candidates that take fewer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.codegen.triton.emit import emit
from lamina.ir.loops import Nest
from lamina.ir.plan import Block, GpuSchedule, Plan
from lamina.schedule.gpu_facts import NestFacts
from lamina.schedule.gpu_space import candidates
from lamina.schedule.tile_work import TileWork
from tests.tuning.plans import TARGET, gpu_plan


def condition(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A condition of each row, and results at each of its points."""
    found = y > 0
    return found, torch.atan2(x, torch.where(found, x, -x))


def beside(x: Tensor, w: Tensor) -> Tensor:
    """A cosine of each row beside sixteen columns."""
    return torch.cos(x)[:, None] + w


def normalised(x: Tensor, y: Tensor) -> Tensor:
    """Much computed of columns that are gone over three times."""
    return torch.atan2(F.log_softmax(torch.atan2(x, x.abs() + 0.5).erf(), 0), y)


def only(plan: Plan) -> tuple[Nest, dict[str, str], GpuSchedule]:
    (kernel,) = plan.kernels
    (nest,), (schedule,) = kernel.nests, kernel.schedules
    assert isinstance(schedule, GpuSchedule)
    return nest, {f"b{k}": dtype for k, dtype in enumerate(kernel.dtypes)}, schedule


def work(plan: Plan) -> tuple[TileWork, dict[str, int], GpuSchedule]:
    nest, dtypes, schedule = only(plan)
    lengths = {a.name: a.extent.const for a in nest.axes}
    return TileWork(NestFacts(nest, dtypes, TARGET), lengths), lengths, schedule


def columns(role: str, size: int, warps: int) -> GpuSchedule:
    blocks = Block(("i0",), size, role), Block(("i1",), 32, "grid")
    return GpuSchedule("columns", blocks, warps=warps)


def test_joined_axes_compute_at_each_point_what_varies_over_one() -> None:
    count, lengths, _ = work(gpu_plan(beside, torch.zeros(4096), torch.zeros(16)))
    first, last = lengths
    joined = GpuSchedule("pointwise", (Block((first, last), 1024, "grid"),))
    apart = GpuSchedule("pointwise", (Block((first,), 64, "grid"), Block((last,), 16, "grid")))
    assert count(joined) > 3 * count(apart)


def test_a_loop_computes_in_each_phase_what_that_needs() -> None:
    count, lengths, _ = work(gpu_plan(normalised, torch.zeros(50, 4096), torch.zeros(50, 4096)))
    assert len(count.phases(frozenset(["i0"]), online=False)) == 3
    assert len(count.phases(frozenset(["i0"]), online=True)) == 2
    looped, held = count(columns("loop", 4, 4)), count(columns("whole", 64, 4))
    assert lengths == {"i0": 50, "i1": 4096}
    assert looped > 1.5 * held


def test_threads_beyond_the_points_compute_too() -> None:
    count, _, _ = work(gpu_plan(normalised, torch.zeros(50, 4096), torch.zeros(50, 4096)))
    few, many = columns("loop", 4, 4), columns("loop", 4, 16)
    assert count(many) > 2 * count(few)


def test_candidates_have_joined_axes_apart() -> None:
    nest, dtypes, first = only(gpu_plan(beside, torch.zeros(1 << 20), torch.zeros(16)))
    lengths = {a.name: a.extent.const for a in nest.axes}
    count = TileWork(NestFacts(nest, dtypes, TARGET), lengths)
    found = [r.schedule for r in candidates(nest, dtypes, TARGET, lengths)]
    assert found[0] == first
    assert len(first.blocks) == 1
    assert any(len(s.blocks) == 2 and count(s) < 0.8 * count(first) for s in found[:3])


def test_candidates_hold_columns_that_would_be_gone_over_three_times() -> None:
    x, y = torch.zeros(56, 8, 1113, 32).transpose(2, 3), torch.zeros(56, 32, 1113, 8).permute(0, 3, 1, 2)
    nest, dtypes, first = only(gpu_plan(normalised, x, y))
    assert [b.role for b in first.blocks].count("loop") == 1
    found = [r.schedule for r in candidates(nest, dtypes, TARGET)]
    assert any("whole" in [b.role for b in s.blocks] for s in found)


def test_what_does_not_vary_over_a_joined_axis_is_stored_by_one_of_its_points() -> None:
    plan = gpu_plan(condition, torch.zeros(4096, 1700), torch.zeros(4096, 1))
    _, _, schedule = only(plan)
    (block,) = schedule.blocks
    assert len(block.axes) == 2
    stores = [line for line in emit(plan.kernels[0], TARGET).text.splitlines() if "tl.store" in line]
    assert [f"({block.axes[1]} == 0)" in line for line in stores] == [True, False]
