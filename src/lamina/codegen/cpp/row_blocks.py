"""Column sums of cheap values: some rows are added up in registers before memory is touched."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.codegen.cpp.bounds import Bounds
from lamina.codegen.cpp.column_totals import BLOCKED_ROWS, ROWS, ColumnTotals
from lamina.codegen.cpp.needs import Needs
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.reductions import Reductions
from lamina.codegen.cpp.text import LoopBody, Text
from lamina.codegen.cpp.vector_body import VectorBody
from lamina.ir.loops import Check, Constant, Random, Reduce, Scan, Store

__all__ = ["RowBlocks"]

_ROWS = 4
"""Rows that a column sum adds up in registers, unless the schedule has another number."""


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """Writes loops down columns, a few rows at a time."""

    facts: NestAnalysis
    bounds: Bounds
    needs: Needs
    body: VectorBody
    reductions: Reductions
    totals: ColumnTotals

    def write(self, text: Text, axis: str, loop_body: LoopBody, begin: str, end: str) -> bool:
        """Write the loop over ``axis`` from ``begin`` to ``end`` in this way, if that is possible."""
        facts = self.facts
        sums = self._column_sums(axis, loop_body)
        if not sums:
            return False
        vector = facts.vector
        assert vector is not None
        low, high = self.bounds.of(vector)
        rows, at = f"{sums[0].outs[0]}_rows", f"{sums[0].outs[0]}_at"  # another phase may have a loop over this axis
        text.open(f"auto {rows} = [&](int64 first, auto count) STEP {{")
        text.open(f"strip<1>({low}, {high}, [&](int64 {vector}, auto n, int k) STEP {{")
        same = self.body.invariant(loop_body, axis)
        for line in self.body.before(same):
            text.add(line)
        for eqn in sums:
            self.reductions.begin_row(text, eqn)
        text.open(f"for (int64 {axis} = first; {axis} < first + count; ++{axis}) {{")
        for line in self.body.lines(loop_body, same):
            text.add(line)
        text.close()
        for eqn in sums:
            self.reductions.end_row(text, eqn, joining=True)
        text.close("});")
        text.close("};")
        text.add(f"int64 {at} = {begin};")
        together = facts.schedule.unroll or _ROWS
        text.open(f"for (; {at} + {together} <= {end}; {at} += {together}) {{")
        text.add(f"{rows}({at}, Times<{together}>{{}});")
        self.totals.drain_now_and_then(text, axis, f"({at} - {begin})")
        text.close()
        if not (begin.isdigit() and end.isdigit() and (int(end) - int(begin)) % together == 0):
            text.add(f"for (; {at} < {end}; ++{at}) {rows}({at}, Times<1>{{}});")
        return True

    def height(self, axis: str, loop_body: LoopBody) -> int:
        """How many rows a column sum adds up before they go into its total."""
        return BLOCKED_ROWS if self._column_sums(axis, loop_body) else ROWS

    def _column_sums(self, axis: str, loop_body: LoopBody) -> list[Reduce]:
        """The reductions over ``axis`` into arrays, if the loop over it does nothing else but cheap vector work."""
        facts = self.facts
        if facts.vector is None or axis == facts.vector:
            return []
        inside = loop_body.opened | {axis, facts.vector}
        sums: list[Reduce] = []
        for goal in loop_body.goals:
            eqn = facts.body[goal.position]
            axes = self.needs.axes(goal)
            if goal.name or not axes <= inside or facts.vector not in axes:
                return []
            if isinstance(eqn, Reduce) and self.reductions.target(eqn) == "array":
                if axis not in eqn.axes:  # a sum over a loop around this one, kept for each of these rows
                    return []
                sums.append(eqn)
            elif not isinstance(eqn, Store):
                return []
        for position in self.needs.of(loop_body.known, loop_body.goals):
            eqn = facts.body[position]
            one_row = facts.axes_at(position) <= loop_body.opened | {axis}
            ready = isinstance(eqn, Reduce) and facts.axes[eqn.outs[0]] <= inside - {axis}  # by an earlier phase
            if isinstance(eqn, Scan | Check | Random) or (isinstance(eqn, Reduce) and not ready):
                return []
            if one_row and not isinstance(eqn, Constant):
                return []
        cheap = self.body.accumulators(loop_body, self.body.invariant(loop_body, axis)) == _ROWS
        return sums if cheap and facts.schedule.unroll != 1 else []
