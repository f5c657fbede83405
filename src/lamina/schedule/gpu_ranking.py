"""The order in which schedules of a GPU kernel are timed: what is expected to be fastest first.

Its constants were fitted to kernels of generated programs with schedules that were timed on an H200. The fastest of
the schedule used unmeasured and the three that come next (``gpu_space``) takes 1.05 times the fastest schedule's time,
as a geometric mean of 86 of ``gpu_schedules.json`` that today's sources still make, and 1.03 of 95 that were timed
because their programs were slow; 1.06 of both where loops that read ahead take no longer and neighbours in this order
are not told apart. What is used unmeasured stays with ``gpu_refine``'s times: its rules were timed one by one, and this
order, which says nothing of what registers keep, would leave some of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2, prod

from lamina.ir.plan import GpuSchedule
from lamina.schedule.gpu_cost import CostModel
from lamina.schedule.gpu_facts import ENOUGH_WARPS, NestFacts
from lamina.schedule.gpu_refine import ExpectedTime
from lamina.schedule.tile_work import TileWork

__all__ = ["RankingTime", "points_of_a_thread"]


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
        three tenths to its instructions, since of fewer others compute while one waits; so does reading ahead, which
        takes registers.
        """
        cost = self.cost(schedule)
        longer = 1 + 0.3 * (max(0.0, log2(max(points_of_a_thread(schedule), 1) / 4)) + (schedule.stages > 1))
        return self.memory_us(cost, schedule) + 2 * longer * self.arithmetic_us(cost, schedule, 2 * ENOUGH_WARPS)


def points_of_a_thread(schedule: GpuSchedule) -> float:
    """Points of a tile that a thread has."""
    return prod(b.size for b in schedule.blocks) / (32 * schedule.warps)
