"""Vector loops: the innermost loop, and shapes of it that keep reductions in registers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from lamina.codegen.cpp.accumulate import accumulator
from lamina.codegen.cpp.expressions import index_text
from lamina.codegen.cpp.reductions import BLOCKED_ROWS, ROWS
from lamina.codegen.cpp.scans import Scans
from lamina.codegen.cpp.segments import cuts, decided
from lamina.codegen.cpp.text import Goal, Scope, Text
from lamina.ir.index import prod
from lamina.ir.loops import Check, Compute, Constant, Load, Random, Reduce, Scan, Store
from lamina.ir.ops import OPS

__all__ = ["VectorLoops"]

_BLOCK = 4096
_WINDOW = 32
_MOST_CUTS = 6
_ROWS = 4
"""Rows that a column sum adds up in registers, unless the schedule has another number."""


class VectorLoops(Scans):
    """Writes loops over the vector axis."""

    def window(self, scope: Scope, axis: str, opened: frozenset[str], known: frozenset[str], goals: list[Goal]) -> bool:
        """Reductions over a few points beside the vector axis, as in pooling: registers hold them from start to end."""
        facts, text = self.facts, scope.text
        loops = [a for a in facts.order if a not in opened and a != facts.vector and facts.loop[a] >= facts.loop[axis]]
        size = prod(facts.extent[a] for a in loops)
        if facts.vector is None or axis == facts.vector or not size.is_int or size.const > _WINDOW:
            return False
        reductions = []
        for goal in goals:
            eqn = facts.body[goal.position]
            if not isinstance(eqn, Reduce) or goal.name or set(eqn.axes) != set(loops):
                return False
            if self.targets[eqn.outs[0]] not in ("array", "bests") or facts.vector not in self.goal_axes(goal):
                return False
            reductions.append(eqn)
        if any(isinstance(facts.body[p], Reduce | Scan | Check | Random) for p in self.needed(known, goals)):
            return False
        low, high = self.bounds(facts.vector)
        text.open(f"strip<1>({low}, {high}, [&](int64 {facts.vector}, auto n, int k) STEP {{")
        for eqn in reductions:
            out = eqn.outs[0]
            if self.targets[out] == "bests":
                start = accumulator(eqn.op[3:], facts.dtype[eqn.value]).start(True)
                text.add(f"{self.best(eqn, True)} {out}_s = {{{start}, vi64{{}}}};")
                self.targets[out] = "row best"
            else:
                acc = self.accumulator(eqn)
                text.add(f"{acc.vector} {out}_s = {acc.start(True)};")
                self.targets[out] = "row"
        for name in loops:
            text.open(f"for (int64 {name} = 0; {name} < {index_text(facts.extent[name], {})}; ++{name}) {{")
        for line in self.vector_body(known, goals):
            text.add(line)
        for _ in loops:
            text.close()
        for eqn in reductions:
            out = eqn.outs[0]
            place = self.arrays[out].at()
            if self.targets[out] == "row best":
                text.add(f"store_int64({place}, {out}_s.at, n);")
                self.targets[out] = "bests"
            else:
                text.add(f"store_{self.arrays[out].kind}({place}, {out}_s, n);")
                self.targets[out] = "array"
        text.close("});")
        return True

    def row_blocks(
        self,
        scope: Scope,
        axis: str,
        begin: str,
        end: str,
        opened: frozenset[str],
        known: frozenset[str],
        goals: list[Goal],
    ) -> bool:
        """Column sums of cheap values: some rows are added up in registers before memory is touched."""
        facts, text = self.facts, scope.text
        sums = self.column_sums(axis, opened, known, goals)
        if not sums:
            return False
        vector = facts.vector
        assert vector is not None
        low, high = self.bounds(vector)
        rows, at = f"{sums[0].outs[0]}_rows", f"{sums[0].outs[0]}_at"  # another phase may have a loop over this axis
        text.open(f"auto {rows} = [&](int64 first, auto count) STEP {{")
        text.open(f"strip<1>({low}, {high}, [&](int64 {vector}, auto n, int k) STEP {{")
        for eqn in sums:
            acc = self.accumulator(eqn)
            text.add(f"{acc.vector} {eqn.outs[0]}_s = {acc.start(True)};")
            self.targets[eqn.outs[0]] = "row"
        text.open(f"for (int64 {axis} = first; {axis} < first + count; ++{axis}) {{")
        for line in self.vector_body(known, goals):
            text.add(line)
        text.close()
        for eqn in sums:
            array = self.arrays[eqn.outs[0]]
            total = self.accumulator(eqn).join(f"load_{array.kind}({array.at()}, n)", f"{eqn.outs[0]}_s", True)
            text.add(f"store_{array.kind}({array.at()}, {total}, n);")
            self.targets[eqn.outs[0]] = "array"
        text.close("});")
        text.close("};")
        text.add(f"int64 {at} = {begin};")
        together = facts.schedule.unroll or _ROWS
        text.open(f"for (; {at} + {together} <= {end}; {at} += {together}) {{")
        text.add(f"{rows}({at}, Times<{together}>{{}});")
        self.drain_now_and_then(text, axis, f"({at} - {begin})")
        text.close()
        text.add(f"for (; {at} < {end}; ++{at}) {rows}({at}, Times<1>{{}});")
        return True

    def block_rows(self, axis: str, opened: frozenset[str], known: frozenset[str], goals: list[Goal]) -> int:
        """How many rows a column sum adds up before they go into its total."""
        return BLOCKED_ROWS if self.column_sums(axis, opened, known, goals) else ROWS

    def column_sums(self, axis: str, opened: frozenset[str], known: frozenset[str], goals: list[Goal]) -> list[Reduce]:
        """The reductions over ``axis`` into arrays, if the loop over it does nothing else but cheap vector work."""
        facts = self.facts
        if facts.vector is None or axis == facts.vector:
            return []
        inside = opened | {axis, facts.vector}
        sums: list[Reduce] = []
        for goal in goals:
            eqn = facts.body[goal.position]
            if goal.name or not self.goal_axes(goal) <= inside or facts.vector not in self.goal_axes(goal):
                return []
            if isinstance(eqn, Reduce) and self.targets[eqn.outs[0]] == "array":
                sums.append(eqn)
            elif not isinstance(eqn, Store):
                return []
        for position in self.needed(known, goals):
            eqn = facts.body[position]
            one_row = facts.axes_at(position) <= opened | {axis}
            if isinstance(eqn, Reduce | Scan | Check | Random) or (one_row and not isinstance(eqn, Constant)):
                return []
        return sums if self.suggested(known, goals) == _ROWS and facts.schedule.unroll != 1 else []

    def strip(
        self,
        scope: Scope,
        axis: str,
        opened: frozenset[str],
        known: frozenset[str],
        goals: list[Goal],
        begin: str,
        end: str,
    ) -> None:
        """The innermost loop, a vector of consecutive points at a time."""
        text = scope.text
        folding = [g.position for g in goals if self.folds(g)]
        if not folding and self.segments(text, axis, known, goals, begin, end):
            return
        body = self.vector_body(known, goals)
        unroll = self.facts.schedule.unroll or (min(self.suggested(known, goals), self.fill(axis)) if folding else 1)
        extent = self.facts.extent[axis]
        blocks = not self.short(axis) and any(self.targets[self.out(p)] == "total" for p in folding)
        if blocks:
            text.open(f"for (int64 {axis}_block = {begin}; {axis}_block < {end}; {axis}_block += {_BLOCK}) {{")
            begin, end = f"{axis}_block", f"least({axis}_block + {_BLOCK}, {end})"
        for position in folding:
            self.declare_lanes(text, position, unroll)
        lanes = 16 if self.facts.schedule.width == 64 else 8
        even = extent.is_int and extent.const % lanes == 0 and axis not in self.blocks and not blocks
        call = f"strip{'_even' if even else ''}<{unroll}>"
        if self.backward(axis, self.scans(known, goals, axis)):
            call = "strip_back"
        text.open(f"{call}({begin}, {end}, [&](int64 {axis}, auto n, int k) STEP {{")
        for line in [] if folding else self.next_row(goals, opened | {axis}):
            text.add(line)
        for line in body:
            text.add(line)
        text.close("});")
        for position in folding:
            self.join_lanes(text, position, unroll)
        if blocks:
            text.close()

    def segments(self, text: Text, axis: str, known: frozenset[str], goals: list[Goal], begin: str, end: str) -> bool:
        """Cut the loop where conditions on the axis change, if there are any such."""
        positions = self.needed(known, goals)
        places = cuts(self.facts, positions)
        if not 0 < len(places) <= _MOST_CUTS or self.scans(known, goals, axis):
            return False
        edges = [0, *places, self.facts.extent[axis].const]
        lanes = 16 if self.facts.schedule.width == 64 else 8
        for low, high in pairwise(edges):
            self.write.decided = decided(self.facts, positions, low)
            whole = axis not in self.blocks
            first, last = (str(low), str(high)) if whole else (f"most({begin}, {low})", f"least({end}, {high})")
            even = "_even" if whole and (high - low) % lanes == 0 else ""
            text.open(f"strip{even}<1>({first}, {last}, [&](int64 {axis}, auto n, int k) STEP {{")
            for line in self.vector_body(known, goals):
                text.add(line)
            text.close("});")
        self.write.decided = {}
        return True

    def vector_body(self, known: frozenset[str], goals: list[Goal]) -> list[str]:
        """Statements of the vector loop, in the order of the equations."""
        facts = self.facts
        as_goal = {g.position: g for g in goals}
        keeps = {g.position for g in goals if g.name}
        lines: list[str] = []
        places = sorted(self.needed(known, goals) | set(as_goal))
        turns = self.turns(places)
        joined = {one for row in turns.values() for one in row}
        for position in places:
            eqn = facts.body[position]
            if position in keeps:
                goal = as_goal[position]
                lines += self.advance(eqn) if isinstance(eqn, Scan) else [self.write.define(position)]
                lines.append(self.write.array_store(goal.name, self.arrays[goal.name]))
            elif position in turns:
                lines.append(self.write.store_turns([facts.stores[one] for one in turns[position]]))
            elif isinstance(eqn, Store):
                lines += [] if position in joined else [self.write.store(eqn, True)]
            elif isinstance(eqn, Check):
                number = self.first_check + facts.check_number[position]
                cond = self.write.value(eqn.cond, True)
                lines.append(f"if (any_lane(~{cond} & lanes(n))) {{ failed = {number}; return; }}")
            elif isinstance(eqn, Reduce) and position in as_goal:
                lines.append(self.vector_accumulate(eqn))
            elif not isinstance(eqn, Constant):
                name = eqn.outs[0] if isinstance(eqn, Reduce) else eqn.out
                if name in self.arrays:
                    lines.append(self.write.array_load(name, self.arrays[name]))
                elif isinstance(eqn, Scan):
                    lines += self.advance(eqn)
                else:
                    lines.append(self.write.define(position))
        return lines

    def turns(self, places: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Stores of the loop whose elements take turns in memory: position of the last of them to all, in that order.

        What is read from such memory behind the first of them is read where it was.
        """
        stores = [p for p in places if p in self.facts.stores]
        found = self.write.turns([self.facts.stores[p] for p in stores])
        turns = {stores[last]: tuple(stores[k] for k in row) for last, row in found.items()}
        read = [(p, e.buffer) for p in places if isinstance(e := self.facts.body[p], Load)]
        return {
            last: row
            for last, row in turns.items()
            if not any(min(row) < p < last and b == self.facts.stores[last].buffer for p, b in read)
        }

    def random_runs(self, text: Text) -> list[str]:
        """Declarations of what vector loops in ``text`` keep of random numbers drawn for consecutive indices.

        One for each Random and function: several loops may draw the same numbers, and rows go on where the last ended.
        """
        drawn = [e.out for e in self.facts.body if isinstance(e, Random)]
        return [f"PhiloxRun {out}_run;" for out in drawn if any(f"{out}_run.at(" in line for line in text.lines)]

    def fill(self, axis: str) -> int:
        """How many vectors, a power of two, hold all points of ``axis``, at most as many as are added up apart."""
        extent, lanes = self.facts.extent[axis], max(self.facts.schedule.width // 4, 1)
        return next((n for n in (1, 2) if extent.is_int and extent.const <= n * lanes), _ROWS)

    def suggested(self, known: frozenset[str], goals: list[Goal]) -> int:
        """How many accumulators: enough to hide an addition's latency behind cheap work."""
        cost = 0
        for position in self.needed(known, goals):
            eqn = self.facts.body[position]
            cost += OPS[eqn.op].cost if isinstance(eqn, Compute) else 2
        return 4 if cost <= 24 else 2 if cost <= 48 else 1
