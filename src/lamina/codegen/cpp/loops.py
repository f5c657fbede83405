"""Loops over one axis: with what they carry declared before them, and finished behind them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lamina.codegen.cpp.arrays import Arrays
from lamina.codegen.cpp.bounds import Bounds
from lamina.codegen.cpp.column_totals import ColumnTotals
from lamina.codegen.cpp.expressions import element
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.reductions import Reductions
from lamina.codegen.cpp.row_blocks import RowBlocks
from lamina.codegen.cpp.scans import Scans
from lamina.codegen.cpp.skips import condition
from lamina.codegen.cpp.strips import Strips
from lamina.codegen.cpp.text import LoopBody, Scope
from lamina.codegen.cpp.windows import Windows
from lamina.ir.loops import Reduce

__all__ = ["Inside", "Loops"]

Inside = Callable[[Scope, LoopBody], None]
"""Writes what is inside the loops that are open."""


@dataclass(frozen=True, slots=True)
class Loops:
    """Writes the loops of one thread."""

    facts: NestAnalysis
    bounds: Bounds
    arrays: Arrays
    reductions: Reductions
    totals: ColumnTotals
    scans: Scans
    strips: Strips
    windows: Windows
    row_blocks: RowBlocks

    def write(self, scope: Scope, loop: int, loop_body: LoopBody, inside: Inside) -> set[str]:
        """Write loop number ``loop`` for the goals of ``loop_body``; the reductions whose results exist after it."""
        facts = self.facts
        ends = self.ending(loop, loop_body)
        axis = next((a for a in facts.order if facts.loop[a] == loop), "")
        for position in ends:
            self.reductions.begin(scope, loop_body.opened, axis, position)
        rows = self.row_blocks.height(axis, loop_body)
        for position in ends:
            self.reductions.begin_total(scope, position, rows)
        for goal in loop_body.goals:
            if goal.name and goal.name not in self.arrays:
                self._begin_keep(scope, loop_body.opened, goal.name)
        for scan in self.scans.along(axis, loop_body):
            self.scans.begin(scope, loop_body.opened, scan)
        self._loop(scope, axis, loop_body, inside)
        done = [position for position in ends if self.reductions.end(scope.text, position)]
        return {facts.reduce(position).outs[0] for position in done}

    def ending(self, loop: int, loop_body: LoopBody) -> list[int]:
        """Reductions among the goals that are complete when this loop is."""
        found = []
        for goal in loop_body.goals:
            eqn = self.facts.body[goal.position]
            if isinstance(eqn, Reduce) and not goal.name and min(self.facts.loop[a] for a in eqn.axes) == loop:
                found.append(goal.position)
        return found

    def _loop(self, scope: Scope, axis: str, loop_body: LoopBody, inside: Inside) -> None:
        """Write the loop over ``axis`` in the way that suits what is inside."""
        text = scope.text
        if axis == self.facts.vector:
            self.strips.write(text, axis, loop_body)
            return
        begin, end = self.bounds.of(axis)
        if self.windows.write(text, axis, loop_body) or self.row_blocks.write(text, axis, loop_body, begin, end):
            return
        if self.scans.run_backward(axis, loop_body):
            text.open(f"for (int64 {axis} = {end} - 1; {axis} >= {begin}; --{axis}) {{")
        else:
            when = condition(self.facts, loop_body)
            text.open(f"{f'if ({when}) ' if when else ''}for (int64 {axis} = {begin}; {axis} < {end}; ++{axis}) {{")
        inside(Scope(text, scope.memory, "continue", scope.stack), loop_body.within(axis))
        self.totals.drain_now_and_then(text, axis)
        text.close()

    def _begin_keep(self, scope: Scope, opened: frozenset[str], name: str) -> None:
        """Give a value that a later phase needs again memory for each point of its loops."""
        axes = tuple(a for a in self.facts.order if a in self.facts.axes[name] and a not in opened)
        self.arrays[name] = self.arrays.allocate(scope, f"{name}_row", axes, element(self.facts.dtype[name]))
