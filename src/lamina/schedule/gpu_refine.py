"""A schedule that rules chose, moved to where memory, arithmetic and registers together are expected to take less time.

The rules were made one by one, each from nests that were timed, and say little of others: a scan over long rows beside
seventeen columns got eleven programs, a tile of many operands 250 registers a thread. The time expected here is rougher
than the rules where those were timed, so that a schedule is left as it is unless another promises much. What loops read
ahead is left to the rules, and so are nests without loops: what neighbouring programs find in caches is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from lamina.ir.loops import Nest, Store
from lamina.ir.plan import GpuSchedule
from lamina.schedule.gpu_cost import Cost, CostModel
from lamina.schedule.gpu_facts import ENOUGH_WARPS, MUCH, NestFacts
from lamina.schedule.gpu_neighbours import around, length_of, searchable
from lamina.schedule.gpu_work import LAUNCH, NEAR, SECTOR, executed

__all__ = ["HOPELESS", "REGISTERS", "ExpectedTime", "refined"]

HOPELESS = 0.6
"""Share of another's expected speed below which a schedule is no candidate, and the rules' choice is left. Where that
is expected to reach this share of the speed of its bytes and instructions, no other is looked at.
"""
REGISTERS = 50
"""Registers of a thread as estimated: with more, arithmetic waits for what other programs would hide."""
_KINDS = ("columns", "loops", "mixed", "scan")
"""Kinds of schedules that are looked at. (H200, 43 kernels of generated programs that took 10 us or more, with weights
a little different from today's: the geometric mean of the speed was 1.64 times the rules', five lost. Elementwise nests
lost as often as they gained, down to a tenth of the speed; so did columns held whole by 32 warps: 132 x 49,152 took
14.4 us in four and 49.7.)
"""


class ExpectedTime:
    """Microseconds that schedules of one nest are expected to take; ``extents`` gives each axis its length.

    ``least``: those of its bytes and instructions alone; ``bytes``: what memory moves in that time.
    """

    model = CostModel

    def __init__(self, facts: NestFacts, extents: Mapping[str, int]) -> None:
        self.target, self.extents = facts.target, extents
        self.cost = self.model(facts.nest, facts.dtypes, facts.target, extents)
        self.instructions = facts.instructions
        nbytes = sum(prod(extents[a] for a in axes) * size for axes, size, _ in self.cost.accesses)
        self.bytes = nbytes + executed(self.instructions * prod(extents.values()))
        self.memory, self.least = self._us(nbytes), self._us(self.bytes)

    def _us(self, nbytes: float) -> float:
        """Microseconds in which memory moves so many bytes."""
        return nbytes / (1e3 * self.target.copy_gbs)

    def __call__(self, schedule: GpuSchedule) -> float:
        """What memory or arithmetic takes, whichever is more, and half of the other."""
        cost = self.cost(schedule)
        memory, arithmetic = self.memory_us(cost, schedule), self.arithmetic_us(cost, schedule, ENOUGH_WARPS)
        return max(memory, arithmetic) + min(memory, arithmetic) / 2

    def memory_us(self, cost: Cost, schedule: GpuSchedule) -> float:
        """Microseconds of moving bytes."""
        return self.memory / cost.share * self._beside(schedule)

    def arithmetic_us(self, cost: Cost, schedule: GpuSchedule, enough: int) -> float:
        """Microseconds of the instructions at all points of tiles; so many warps hide what each of them waits for."""
        processors = self.target.processors
        warps = min(cost.resident, -(-cost.programs // processors)) * schedule.warps
        hidden = min(1.0, warps / enough) * min(1.0, cost.programs / processors)
        crowded = (max(cost.registers, REGISTERS) / REGISTERS) ** 2
        return self._us(executed(self.instructions_in(schedule))) / hidden * crowded

    def instructions_in(self, schedule: GpuSchedule) -> float:
        """Instructions at all points of all tiles."""
        tiles = (-(-length_of(block, self.extents) // block.size) * block.size for block in schedule.blocks)
        return self.instructions * prod(tiles)

    def _beside(self, schedule: GpuSchedule) -> float:
        """What narrow tiles fetch beside their runs, which programs beside them have just read, as a multiple."""
        blocks = {a: b for b in schedule.blocks for a in b.axes}
        least = max((total for _, _, total in self.cost.contiguous), default=0) // 2
        long = [(name, size) for name, size, total in self.cost.contiguous if total >= least]
        runs = [self.cost.points_in_row(name, blocks[name]) * size for name, size in long]
        return 1 + NEAR * max(0.0, SECTOR / min(runs, default=SECTOR) - 1)


def refined(
    nest: Nest,
    facts: NestFacts,
    found: GpuSchedule,
    extents: Mapping[str, int],
    fits: Callable[[GpuSchedule], GpuSchedule],
) -> GpuSchedule:
    """``found``, or a schedule near it that is expected to be much faster; ``fits`` gives it as many stages as it can
    have.

    What takes few instructions, and rows whose columns are reduced too where there are many programs of them or their
    numbers have 16 bits, the rules know best, unless most processors would be without a program. Nests that add into
    memory at places that several points share are left alone: what they wait for is not counted.
    """
    adds = any(isinstance(e, Store) and e.mode != "set" for e in nest.body)
    windows = len(facts.sets) == 1 and facts.slides()  # a thread's sums stay in its registers
    if adds or windows or found.kind not in _KINDS or not searchable(found):
        return found
    expected = ExpectedTime(facts, extents)
    programs, processors = expected.cost.programs(found), facts.target.processors
    known = found.kind == "mixed" and (facts.bytes() <= 2 or programs * found.warps >= ENOUGH_WARPS * processors)
    if 2 * programs >= processors and (known or facts.instructions < MUCH):
        return found
    before = expected(found)
    if expected.bytes < LAUNCH or HOPELESS * before < expected.least:
        return found
    best, time, seen = found, before, {found}

    def is_alike(schedule: GpuSchedule) -> bool:
        return schedule.stages == found.stages and schedule.warps <= max(ENOUGH_WARPS, found.warps)

    while True:
        near = [s for s in dict.fromkeys(map(fits, around(best, extents, 2))) if s not in seen and is_alike(s)]
        seen.update(near)
        fastest = min(near, key=expected, default=None)
        if fastest is None or (took := expected(fastest)) >= time:
            return best if time <= HOPELESS * before else found
        best, time = fastest, took
