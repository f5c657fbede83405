"""The loop structure of one nest.

A region is the code inside some open loops. What must run there (its goals: stores, checks, accumulations) falls into
phases, because the result of a reduction exists only after its loops; within a phase, goals that go into the same
next loop share it. Values on which several phases depend are computed in each of them, or kept in memory.
"""

from __future__ import annotations

from lamina.codegen.cpp.expressions import element
from lamina.codegen.cpp.text import Goal, Scope, Text
from lamina.codegen.cpp.vector_loops import VectorLoops
from lamina.ir.loops import Check, Constant, Load, Reduce, Scan, Store, defined

__all__ = ["Region"]


class Region(VectorLoops):
    """Writes regions of one nest. Subclassed by the kernel writer, which opens the shared outer loop."""

    def region(self, scope: Scope, opened: frozenset[str], have: frozenset[str], goals: list[Goal]) -> None:
        """Write what ``goals`` need inside the loops over ``opened``; ``have`` names values already in scope."""
        outer_arrays = dict(self.arrays)
        phases = self.phases(opened, have, goals)
        last = max((p for p, _ in phases.values()), default=0)
        known = set(have)
        for phase in range(last + 1):
            deeper = self.level(scope, opened, known, phases, phase)
            deeper += self.keeping(opened, frozenset(known), phases, phase)
            groups: dict[int, list[Goal]] = {}
            for goal in deeper:
                loop = self.facts.first_loop(self.goal_axes(goal), opened)
                assert loop is not None
                groups.setdefault(loop, []).append(goal)
            for loop in sorted(groups):
                known |= self.group(scope, loop, opened, frozenset(known), groups[loop])
        self.arrays = {n: a for n, a in self.arrays.items() if n in outer_arrays} if opened else self.arrays

    def phases(
        self, opened: frozenset[str], have: frozenset[str], goals: list[Goal]
    ) -> dict[int, tuple[int, Goal | None]]:
        """Phase of every equation involved, and the goal it is (reductions that end here become goals)."""
        facts = self.facts
        as_goal = {g.position: g for g in goals}
        involved = sorted(self.needed(have, goals) | set(as_goal))
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
        return self.after_reads(result)

    def after_reads(self, phases: dict[int, tuple[int, Goal | None]]) -> dict[int, tuple[int, Goal | None]]:
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

    def level(
        self,
        scope: Scope,
        opened: frozenset[str],
        known: set[str],
        phases: dict[int, tuple[int, Goal | None]],
        phase: int,
    ) -> list[Goal]:
        """Write what needs no further loop; give back the goals that do."""
        deeper: list[Goal] = []
        for position, (when, goal) in phases.items():
            if when != phase:
                continue
            if goal is not None:
                if self.goal_axes(goal) <= opened:
                    if goal.name:
                        self.compute(scope.text, position)
                        known.add(goal.name)
                    self.reach(scope, opened, goal)
                else:
                    deeper.append(goal)
                continue
            eqn = self.facts.body[position]
            name = eqn.outs[0] if isinstance(eqn, Reduce) else eqn.out  # type: ignore[union-attr]
            if name in self.arrays:
                if self.facts.axes[name] <= opened:
                    scope.text.add(self.write.array_load(name, self.arrays[name]))
                    known.add(name)
            elif self.facts.axes_at(position) <= opened and not isinstance(eqn, Constant | Reduce):
                self.compute(scope.text, position)
                known.add(name)
                if isinstance(eqn, Load):
                    self.next_places(scope.text, opened, eqn)
        return deeper

    def compute(self, text: Text, position: int) -> None:
        """Write an equation that defines one scalar."""
        eqn = self.facts.body[position]
        if isinstance(eqn, Scan):
            for line in self.advance(eqn):
                text.add(line)
        else:
            text.add(self.write.define(position))

    def keeping(
        self,
        opened: frozenset[str],
        known: frozenset[str],
        phases: dict[int, tuple[int, Goal | None]],
        phase: int,
    ) -> list[Goal]:
        """Values of the schedule's ``kept`` that this phase computes and a later one needs again."""
        later = [g for p, g in phases.values() if g is not None and p > phase]
        if not later or not self.facts.schedule.kept:
            return []
        done = {g.position for p, g in phases.values() if g is not None and p <= phase and not g.name}
        made = {name for position in done for name in defined(self.facts.body[position])}
        again = self.needed(known | made, later)
        now = self.needed(known, [g for p, g in phases.values() if g is not None and p == phase])
        result = []
        for name in self.facts.schedule.kept:
            position = self.facts.producer[name]
            crosses = position in again and position in now and not self.facts.axes[name] <= opened
            if crosses and name not in self.arrays:
                result.append(Goal(position, name))
        return result

    def reach(self, scope: Scope, opened: frozenset[str], goal: Goal) -> None:
        """Write a goal whose loops are all open."""
        facts, text = self.facts, scope.text
        if goal.name:
            text.add(self.write.array_store(goal.name, self.arrays[goal.name]))
            return
        eqn = facts.body[goal.position]
        if isinstance(eqn, Reduce):
            self.accumulate(text, eqn)
        elif isinstance(eqn, Check):
            number = self.first_check + facts.check_number[goal.position]
            cond = self.write.value(eqn.cond, False)
            leave = f"{{ failed = {number}; continue; }}" if scope.leave == "continue" else f"return {number};"
            text.add(f"if (!{cond}) {leave}  // {eqn.message[:60]!r}")
        else:
            assert isinstance(eqn, Store)
            text.add(f"{self.once(opened, goal)}{self.write.store(eqn, False)}")

    def once(self, opened: frozenset[str], goal: Goal) -> str:
        """A store that does not depend on some open shared axis happens at its first point only."""
        axes = self.goal_axes(goal)
        missing = [a for a in self.facts.order if a in opened and a not in axes]
        missing += [f"{a}_tile" for a in self.facts.tiles if f"{a}_tile" in opened and a not in axes]
        return f"if ({' && '.join(f'{a} == 0' for a in missing)}) " if missing else ""

    def group(
        self, scope: Scope, loop: int, opened: frozenset[str], known: frozenset[str], goals: list[Goal]
    ) -> set[str]:
        """Open the next loop for ``goals``; the names of the reduction results that exist after it."""
        ends = self.ending(loop, goals)
        axis = next((a for a in self.facts.order if self.facts.loop[a] == loop), "")
        for position in ends:
            self.begin_reduce(scope, opened, axis, position)
        rows = self.block_rows(axis, opened, known, goals)
        for position in ends:
            self.begin_total(scope, axis, position, rows)
        for goal in goals:
            if goal.name and goal.name not in self.arrays:
                self.begin_keep(scope, opened, goal.name)
        for scan in self.scans(known, goals, axis):
            self.begin_scan(scope, opened, scan)
        self.loop(scope, axis, opened, known, goals)
        done = set()
        for position in ends:
            if self.end_reduce(scope.text, position):
                eqn = self.facts.body[position]
                assert isinstance(eqn, Reduce)
                done.add(eqn.outs[0])
        return done

    def ending(self, loop: int, goals: list[Goal]) -> list[int]:
        """Reductions among the goals that are complete when this loop is."""
        found = []
        for goal in goals:
            eqn = self.facts.body[goal.position]
            if isinstance(eqn, Reduce) and not goal.name and min(self.facts.loop[a] for a in eqn.axes) == loop:
                found.append(goal.position)
        return found

    def loop(
        self,
        scope: Scope,
        axis: str,
        opened: frozenset[str],
        known: frozenset[str],
        goals: list[Goal],
    ) -> None:
        begin, end = self.bounds(axis)
        if axis == self.facts.vector:
            self.strip(scope, axis, opened, known, goals, begin, end)
            return
        if self.window(scope, axis, opened, known, goals):
            return
        if self.row_blocks(scope, axis, begin, end, opened, known, goals):
            return
        if self.backward(axis, self.scans(known, goals, axis)):
            scope.text.open(f"for (int64 {axis} = {end} - 1; {axis} >= {begin}; --{axis}) {{")
        else:
            scope.text.open(f"for (int64 {axis} = {begin}; {axis} < {end}; ++{axis}) {{")
        inner = Scope(scope.text, scope.memory, "continue", scope.stack)
        self.region(inner, opened | {axis}, known, goals)
        self.drain_now_and_then(scope.text, axis)
        scope.text.close()

    def begin_keep(self, scope: Scope, opened: frozenset[str], name: str) -> None:
        axes = tuple(a for a in self.facts.order if a in self.facts.axes[name] and a not in opened)
        self.arrays[name] = self.array(scope, f"{name}_row", axes, element(self.facts.dtype[name]))
