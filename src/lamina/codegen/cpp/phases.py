"""The phases of a loop body: the result of a reduction exists only after its loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lamina.codegen.cpp.arrays import Arrays
from lamina.codegen.cpp.needs import Needs
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.text import Goal, LoopBody
from lamina.ir.loops import Check, Reduce, Store, defined

__all__ = ["Phases", "Placed"]

Placed = Mapping[int, tuple[int, Goal | None]]
"""Of each equation that a loop body involves, its phase and the goal that it is, if any."""


@dataclass(frozen=True, slots=True)
class Phases:
    """Divides what loop bodies do into phases."""

    facts: NestAnalysis
    needs: Needs
    arrays: Arrays

    def of(self, loop_body: LoopBody) -> Placed:
        """The equations by phase; reductions that end in the loop body, and checks, are goals as well."""
        facts, opened = self.facts, loop_body.opened
        as_goal = {g.position: g for g in loop_body.goals}
        involved = sorted(self.needs.of(loop_body.known, loop_body.goals) | set(as_goal))
        ready: dict[str, int] = {}
        result: dict[int, tuple[int, Goal | None]] = {}
        for position in involved:
            eqn = facts.body[position]
            names = facts.needs[position]
            goal = as_goal.get(position)
            phase = max((ready.get(n, 0) for n in names), default=0)
            for guard in facts.guards[position]:
                phase = max(phase, result[guard][0] if guard in result else 0)
            after = phase
            if isinstance(eqn, Reduce) and goal is None and eqn.outs[0] not in self.arrays:
                loop = facts.first_loop(facts.axes_at(position), opened)
                if loop == min(facts.loop[a] for a in eqn.axes):
                    goal, after = Goal(position), phase + 1
            elif isinstance(eqn, Check) and goal is None:
                goal = Goal(position)
            result[position] = (phase, goal)
            for name in defined(eqn):
                keeping = goal is not None and goal.name == name
                ready[name] = phase if keeping else 0 if name in self.arrays else after
        return self._after_reads(result)

    def _after_reads(self, phases: Placed) -> Placed:
        """A store into a buffer that is also read waits until the last phase that reads it."""
        body = self.facts.body
        stored = {e.buffer for e in (body[p] for p in phases) if isinstance(e, Store)}
        read = {e.buffer for e in body if not isinstance(e, Store) and hasattr(e, "buffer")}
        if not stored & read:
            return phases
        last = max(p for p, _ in phases.values())
        return {
            position: (last, goal) if isinstance(eqn := body[position], Store) and eqn.buffer in read else (phase, goal)
            for position, (phase, goal) in phases.items()
        }

    def kept(self, opened: frozenset[str], known: frozenset[str], phases: Placed, phase: int) -> list[Goal]:
        """Values of the schedule's ``kept`` that this phase computes and a later one needs again."""
        later = [g for p, g in phases.values() if g is not None and p > phase]
        if not later or not self.facts.schedule.kept:
            return []
        done = {g.position for p, g in phases.values() if g is not None and p <= phase and not g.name}
        made = {name for position in done for name in defined(self.facts.body[position])}
        again = self.needs.of(known | made, later)
        now = self.needs.of(known, [g for p, g in phases.values() if g is not None and p == phase])
        result = []
        for name in self.facts.schedule.kept:
            position = self.facts.use_def.positions[name]
            crosses = position in again and position in now and not self.facts.axes[name] <= opened
            if crosses and name not in self.arrays:
                result.append(Goal(position, name))
        return result
