"""Sums down long columns: a block of rows is added up one by one, then the blocks."""

from __future__ import annotations

from collections.abc import Iterable

from lamina.codegen.cpp.arrays import Array, Arrays
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.text import Scope, Text

__all__ = ["BLOCKED_ROWS", "ROWS", "ColumnTotals"]

ROWS = 32
"""Rows of a column sum added up one by one before they go into the total. Eager adds up 16, then 16 such sums, ..."""

BLOCKED_ROWS = 128
"""The same where a few rows at a time, a power of two, are added up in registers."""


class ColumnTotals:
    """The totals that sums of blocks go into, each with what its additions have lost so far."""

    def __init__(self, facts: NestAnalysis, arrays: Arrays) -> None:
        self.facts, self.arrays = facts, arrays
        self._totals: dict[str, tuple[dict[str, int], Array]] = {}

    def blocks(self, axes: Iterable[str], rows: int) -> dict[str, int]:
        """At each of how many steps of which loops a block of a sum over ``axes`` is full; none if one block holds all.

        The innermost loop with enough rows fills blocks: those around it alone would add up all its rows first. They
        fill blocks too where they are long, as the number of rows inside may be known only at run time.
        """
        found: dict[str, int] = {}
        inside = 1
        for axis in (a for a in reversed(self.facts.order) if a in axes and a != self.facts.vector):
            extent = self.facts.extent[axis]
            if not extent.is_int or extent.const * inside > rows:
                found[axis] = 1 << (max(1, ROWS // inside).bit_length() - 1)
                inside = 1
            else:
                inside = max(1, inside * extent.const)
        return found

    def begin(self, scope: Scope, out: str, blocks: dict[str, int]) -> None:
        """Give the sum ``out``, which is kept in an array and added up in ``blocks``, a total of its own."""
        total = self.arrays.allocate(scope, f"{out}_total", self.arrays[out].axes, "f32")
        scope.text.add(f"fill({total.pointer}, {total.count()}, 0.0f);")
        self.begin_into(scope, out, blocks, total)

    def begin_into(self, scope: Scope, out: str, blocks: dict[str, int], total: Array) -> None:
        """Let the sums of ``out`` go into ``total`` a block of rows at a time."""
        lost = self.arrays.allocate(scope, f"{self.arrays[out].pointer}_lost", total.axes, "f32")
        scope.text.add(f"fill({lost.pointer}, {lost.count()}, 0.0f);")
        self._totals[out] = (blocks, total)

    def drain_now_and_then(self, text: Text, axis: str, at: str = "") -> None:
        """At the end of a row of the loop over ``axis``: move sums into their totals where a block of rows is full.

        ``at`` counts rows that come in blocks.
        """
        for out, (blocks, total) in self._totals.items():
            if axis in blocks:
                mask = blocks[axis] - 1
                last = f"({at} & {BLOCKED_ROWS - 1}) == 0" if at else f"({axis} & {mask}) == {mask}"
                text.add(f"if ({last}) {self._moved(out, total, 'drain')}")

    def finish(self, text: Text, out: str) -> None:
        """Behind the loop: move what is left into the total of ``out``, if it has one, and let that be its value."""
        if out in self._totals:
            _, total = self._totals.pop(out)
            text.add(self._moved(out, total, "settle"))
            self.arrays[out] = total

    def _moved(self, out: str, total: Array, call: str) -> str:
        """Statement that moves a block's sums into the total."""
        block = self.arrays[out].pointer
        return f"{call}({total.pointer}, {block}, {block}_lost, {total.count()});"
