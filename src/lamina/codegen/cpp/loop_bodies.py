"""The loop structure of one nest.

A loop body is the code inside some open loops. What must run there (its goals: stores, checks, accumulations) is in
phases, because the result of a reduction exists only after its loops; within a phase, goals that go into the same
next loop share it. Values on which several phases depend are computed in each of them, or kept in memory.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from lamina.codegen.cpp.arrays import Arrays
from lamina.codegen.cpp.loops import Loops
from lamina.codegen.cpp.needs import Needs
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.phases import Phases, Placed
from lamina.codegen.cpp.points import Points
from lamina.codegen.cpp.shared_loop import SharedLoop
from lamina.codegen.cpp.text import Goal, LoopBody, Scope

__all__ = ["LoopBodyWriter"]


@dataclass(frozen=True, slots=True)
class LoopBodyWriter:
    """Writes the loop bodies of one nest, each with the loops inside it."""

    facts: NestAnalysis
    needs: Needs
    arrays: Arrays
    phases: Phases
    points: Points
    loops: Loops
    shared_loop: SharedLoop

    def write(self, scope: Scope, loop_body: LoopBody) -> None:
        """Write what the goals of ``loop_body`` need inside its open loops."""
        opened, known = loop_body.opened, set(loop_body.known)
        with self.arrays.inside() if opened else nullcontext():
            phases = self.phases.of(loop_body)
            for phase in range(max((p for p, _ in phases.values()), default=0) + 1):
                deeper = self._level(scope, opened, known, phases, phase)
                deeper += self.phases.kept(opened, frozenset(known), phases, phase)
                groups: dict[int, list[Goal]] = {}
                for goal in deeper:
                    loop = self.facts.first_loop(self.needs.axes(goal), opened)
                    assert loop is not None
                    groups.setdefault(loop, []).append(goal)
                for loop in sorted(groups):
                    known |= self._loop(scope, loop, LoopBody(opened, frozenset(known), groups[loop]))

    def _level(self, scope: Scope, opened: frozenset[str], known: set[str], phases: Placed, phase: int) -> list[Goal]:
        """Write what needs no further loop, and add its values to ``known``; give back the goals that need one."""
        deeper: list[Goal] = []
        for position, (when, goal) in phases.items():
            if when != phase:
                continue
            if goal is None:
                name = self.points.define(scope, opened, position)
                known.update([name] if name is not None else [])
            elif self.needs.axes(goal) <= opened:
                self.points.reach(scope, opened, goal)
                known.update([goal.name] if goal.name else [])
            else:
                deeper.append(goal)
        return deeper

    def _loop(self, scope: Scope, loop: int, loop_body: LoopBody) -> set[str]:
        """Write the next loop for the goals of ``loop_body``; the reductions whose results exist after it."""
        if loop == 0 and not loop_body.opened and self.facts.shared:
            return self.shared_loop.write(scope, loop_body, self.write)
        return self.loops.write(scope, loop, loop_body, self.write)
