"""The order in which schedules of a GPU kernel are timed: what is expected to be fastest first.

Its constants were fitted to 172 kernels of generated programs with 1,245 schedules, timed on an H200, when it counted
the same instructions at every point of a tile. The fastest of the schedule used unmeasured and the two that come next
takes 1.04 times the fastest schedule's time, as a geometric mean, with 60 kernels and 319 schedules that came later
1.05 (1.08 in the order of ``gpu_cost``'s shares, of the first 172). What is used unmeasured stays with
``gpu_refine``'s times: its rules were timed one by one, and this order, which says nothing of what registers keep,
would leave some of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2, prod

from lamina.ir.plan import GpuSchedule
from lamina.schedule.gpu_cost import CostModel
from lamina.schedule.gpu_facts import ENOUGH_WARPS, NestFacts
from lamina.schedule.gpu_refine import ExpectedTime
from lamina.schedule.tile_work import TileWork

__all__ = ["RankingTime"]


class _Cost(CostModel):
    """Kernels of one wave of programs, and of a little more, take the same: a wave's time to begin and to end."""

    latency = 1.0

    def kept_busy(self, programs: int, slots: int) -> float:
        waves, processors = max(programs / slots, 1.0), self.target.processors
        even = programs / (-(-programs // processors) * processors) if programs < slots else 1.0
        return even * waves / (waves + 1)


class RankingTime(ExpectedTime):
    """Microseconds that schedules of one nest are expected to take, for their order alone."""

    model = _Cost

    def __init__(self, facts: NestFacts, extents: Mapping[str, int]) -> None:
        super().__init__(facts, extents)
        self._work = TileWork(facts, extents)

    def instructions_in(self, schedule: GpuSchedule) -> float:
        return self._work(schedule)

    def __call__(self, schedule: GpuSchedule) -> float:
        """What memory and arithmetic take, one after the other. Each doubling of a thread's points beyond four adds
        three tenths to its instructions: of fewer, others compute while one waits.
        """
        cost = self.cost(schedule)
        each = prod(b.size for b in schedule.blocks) / (32 * schedule.warps)
        longer = 1 + 0.3 * max(0.0, log2(max(each, 1) / 4))
        return self.memory_us(cost, schedule) + 2 * longer * self.arithmetic_us(cost, schedule, 2 * ENOUGH_WARPS)
