"""The instructions of a nest's tiles on a GPU, for one schedule of it.

What varies over some of a tile's axes only is computed for those alone where they are a block of their own, and at
every point where they are joined with others into one; each thread has a copy at least. A loop computes again, in each
of its phases, what that phase needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from lamina.ir.loops import Check, Load, Store, axes_of, defined, operands
from lamina.ir.plan import Block, GpuSchedule
from lamina.schedule.gpu_cost import ends_of_phases
from lamina.schedule.gpu_facts import NestFacts
from lamina.schedule.gpu_neighbours import length_of
from lamina.schedule.gpu_work import instructions_of

__all__ = ["TileWork"]


class TileWork:
    """Instructions of all threads, by schedule; ``extents`` gives each axis its length."""

    def __init__(self, facts: NestFacts, extents: Mapping[str, int]) -> None:
        self.values, self.extents = facts.values, extents
        self.nest, self.body = facts.nest, facts.nest.body
        self.axes = [axes_of(eqn, facts.values) for eqn in self.body]
        self.made = {
            n: at for at, eqn in enumerate(self.body) if not isinstance(eqn, Store | Check) for n in defined(eqn)
        }
        self._found: dict[tuple[frozenset[str], bool], Mapping[frozenset[str], float]] = {}

    def __call__(self, schedule: GpuSchedule) -> float:
        """Instructions of all threads."""
        blocks = {a: b for b in schedule.blocks for a in b.axes}
        looped = frozenset(a for b in schedule.blocks if b.role == "loop" for a in b.axes)
        threads = 32 * schedule.warps
        programs = prod(self._tiles(b) for b in schedule.blocks if b.role != "loop")
        total = 0.0
        for axes, count in self._counts(looped, schedule.online).items():
            span = {blocks[a] for a in axes}
            points = prod(b.size for b in span)
            # A number of a whole tile is the work of one warp, or the compiler's.
            each = max(points, threads) if points > 1 else 32
            total += count * each * prod(self._tiles(b) for b in span if b.role == "loop")
        return total * programs

    def _counts(self, looped: frozenset[str], online: bool) -> Mapping[frozenset[str], float]:
        """Instructions at a point by the axes at whose points they are computed, of a loop's in all of its phases."""
        if (looped, online) not in self._found:
            phases = self.phases(looped, online) if looped else []
            found = dict[frozenset[str], float]()
            for at, eqn in enumerate(self.body):
                again = max(1, sum(at in phase for phase in phases)) if self.axes[at] & looped else 1
                count = instructions_of(eqn) + isinstance(eqn, Load | Store)
                found[self.axes[at]] = found.get(self.axes[at], 0.0) + again * count
            self._found[looped, online] = found
        return self._found[looped, online]

    def phases(self, looped: frozenset[str], online: bool) -> list[set[int]]:
        """The places of the equations that each phase of a loop over these axes computes; ``online``: a maximum and its
        sum of exponentials together.
        """
        ends = ends_of_phases(self.nest, looped, online)
        return [self._needed(ends[phase], looped) for phase in sorted(ends)]

    def _needed(self, goals: list[int], looped: frozenset[str]) -> set[int]:
        """The places of what these need and varies over the loop."""
        found: set[int] = set()
        todo = list(goals)
        while todo:
            at = todo.pop()
            if at not in found:
                found.add(at)
                todo += [self.made[n] for n in operands(self.body[at]) if self.values[n] & looped]
        return found

    def _tiles(self, block: Block) -> int:
        return -(-length_of(block, self.extents) // block.size)
