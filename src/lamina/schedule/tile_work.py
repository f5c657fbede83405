"""The instructions of a nest's tiles on a GPU, for one schedule of it.

What varies over some of a tile's axes only is computed for those alone where they are a block of their own, and at
every point where they are joined with others into one; each thread has a copy at least. A loop computes again, in each
of its phases, what that phase needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from lamina.ir.index import Loaded
from lamina.ir.loops import Check, Equation, Index, Load, Random, Reduce, Scan, Store, defined, operands
from lamina.ir.plan import Block, GpuSchedule
from lamina.schedule.gpu_facts import NestFacts
from lamina.schedule.gpu_neighbours import length_of
from lamina.schedule.gpu_work import instructions_of

__all__ = ["TileWork"]

_SCALAR = 0.25
"""Instructions of a warp for what is one number of a tile, beside those for a number of each thread: the compiler takes
most such together.
"""


class TileWork:
    """Instructions of all threads, by schedule; ``extents`` gives each axis its length."""

    def __init__(self, facts: NestFacts, extents: Mapping[str, int]) -> None:
        self.values, self.extents = facts.values, extents
        self.body = facts.nest.body
        self.axes = [self._axes(eqn) for eqn in self.body]
        self.counts = [instructions_of(eqn) + isinstance(eqn, Load | Store) for eqn in self.body]
        self.made = {
            n: at for at, eqn in enumerate(self.body) if not isinstance(eqn, Store | Check) for n in defined(eqn)
        }
        self._phases: dict[frozenset[str], list[set[int]]] = {}

    def __call__(self, schedule: GpuSchedule) -> float:
        """Instructions of all threads."""
        blocks = {a: b for b in schedule.blocks for a in b.axes}
        looped = frozenset(a for b in schedule.blocks if b.role == "loop" for a in b.axes)
        threads = 32 * schedule.warps
        programs = prod(self._tiles(b) for b in schedule.blocks if b.role != "loop")
        phases = self.phases(looped) if looped else []
        total = 0.0
        for at, count in enumerate(self.counts):
            span = {blocks[a] for a in self.axes[at]}
            points = prod(b.size for b in span)
            each = max(points, threads) if points > 1 else _SCALAR * threads
            turns = prod(self._tiles(b) for b in span if b.role == "loop")
            again = max(1, sum(at in phase for phase in phases)) if self.axes[at] & looped else 1
            total += count * each * programs * turns * again
        return total

    def phases(self, looped: frozenset[str]) -> list[set[int]]:
        """The places of the equations that each phase of a loop over these axes computes, a maximum and its sum of
        exponentials together.
        """
        if looped in self._phases:
            return self._phases[looped]
        when: dict[str, int] = {}
        goals: dict[int, list[int]] = {}
        tops = {n for e in self.body if isinstance(e, Reduce) and e.op == "max" for n in e.outs}
        for at, eqn in enumerate(self.body):
            phase = max((when[n] for n in operands(eqn) if n not in tops or isinstance(eqn, Store)), default=0)
            over = isinstance(eqn, Reduce) and not looped.isdisjoint(eqn.axes)
            if over or (isinstance(eqn, Store) and self.axes[at] & looped):
                goals.setdefault(phase, []).append(at)
            if not isinstance(eqn, Store | Check):
                when |= dict.fromkeys(defined(eqn), phase + over)
        found = [self._needed(goals[phase], looped) for phase in sorted(goals)]
        self._phases[looped] = found
        return found

    def _needed(self, goals: list[int], looped: frozenset[str]) -> set[int]:
        """The places of what these need and varies over the loop."""
        found: set[int] = set()
        todo = list(goals)
        while todo:
            at = todo.pop()
            if at not in found:
                found.add(at)
                todo += [self.made[n] for n in self._operands(self.body[at]) if self.values[n] & looped]
        return found

    def _tiles(self, block: Block) -> int:
        return -(-length_of(block, self.extents) // block.size)

    @staticmethod
    def _operands(eqn: Equation) -> list[str]:
        """The values that an equation takes, those of its places too."""
        exprs = eqn.index if isinstance(eqn, Load | Store) else ()
        return [*operands(eqn), *(a.name for e in exprs for a in e.atoms() if isinstance(a, Loaded))]

    def _axes(self, eqn: Equation) -> frozenset[str]:
        """The axes at whose points an equation is computed."""
        found = frozenset[str]().union(*(self.values[n] for n in self._operands(eqn)))
        if isinstance(eqn, Load | Store):
            return found.union(*(e.axes() for e in eqn.index))
        if isinstance(eqn, Index):
            return found | eqn.expr.axes()
        if isinstance(eqn, Random):
            return found | eqn.index.axes()
        if isinstance(eqn, Reduce):
            return found.union(eqn.axes)
        return found | {eqn.axis} if isinstance(eqn, Scan) else found
