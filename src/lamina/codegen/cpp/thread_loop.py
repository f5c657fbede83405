"""The points of the shared loop that one thread works on, from ``begin`` to ``end``."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.codegen.cpp.bounds import Bounds
from lamina.codegen.cpp.column_totals import ColumnTotals
from lamina.codegen.cpp.expressions import atomic, index_text
from lamina.codegen.cpp.loops import Inside
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.row_blocks import RowBlocks
from lamina.codegen.cpp.strips import Strips
from lamina.codegen.cpp.text import LoopBody, Scope, Text
from lamina.codegen.cpp.transposes import Transposes

__all__ = ["ThreadLoop"]


@dataclass(frozen=True, slots=True)
class ThreadLoop:
    """Writes the loop over a thread's points: the shared axes and tiles together, or 64 points of the vector axis."""

    facts: NestAnalysis
    bounds: Bounds
    totals: ColumnTotals
    strips: Strips
    row_blocks: RowBlocks
    transposes: Transposes

    def write(self, scope: Scope, loop_body: LoopBody, inside: Inside) -> None:
        """Write the loop for the goals of ``loop_body``, outside of which no loop is open."""
        facts, text = self.facts, scope.text
        if self._is_vector_loop:
            axis = facts.schedule.outer[0]
            text.add(f"const int64 {axis}_begin = begin * 64, {axis}_end = least(end * 64, {self._extent(axis)});")
            with self.bounds.within({axis: (f"{axis}_begin", f"{axis}_end")}):
                self.strips.write(text, axis, loop_body)
            return
        text.open("if (begin < end) {")
        axes = facts.schedule.outer
        single = axes[0] if len(axes) == 1 and not facts.tiles else None
        if single is None or not self.row_blocks.write(text, single, loop_body, "begin", "end"):
            self._open(text)
            blocks = self._tiles(text)
            with self.bounds.within(blocks):
                if len(blocks) == 2:
                    self.transposes.write(text)
                opened = frozenset([*axes, *(f"{a}_tile" for a in facts.tiles)])
                inner = Scope(text, scope.memory, "continue", scope.stack)
                inside(inner, LoopBody(opened, loop_body.known, loop_body.goals))
            if single is not None:
                self.totals.drain_now_and_then(text, single)
            text.close()
        text.close()

    def count(self) -> str:
        """Number of points of the shared loop, as C++ text."""
        facts = self.facts
        if self._is_vector_loop:
            return f"({self._extent(facts.vector or '')} + 63) / 64"
        counts = [self._extent(a) for a in facts.schedule.outer if a != facts.vector]
        counts += [f"({self._extent(axis)} + {tile - 1}) / {tile}" for axis, tile in facts.tiles.items()]
        return " * ".join(atomic(c) for c in counts)

    @property
    def _is_vector_loop(self) -> bool:
        """Whether the shared loop is the vector loop itself."""
        return self.facts.vector is not None and self.facts.vector in self.facts.schedule.outer

    def _extent(self, axis: str) -> str:
        return index_text(self.facts.extent[axis], {})

    def _open(self, text: Text) -> None:
        """Open the loop, with a counter for each shared axis and each tiled one."""
        counters = [(a, self._extent(a)) for a in self.facts.schedule.outer]
        for axis, tile in self.facts.tiles.items():
            counters.append((f"{axis}_tile", f"(({self._extent(axis)} + {tile - 1}) / {tile})"))
        first = counters[0][0]
        if len(counters) == 1:
            text.open(f"for (int64 {first} = begin; {first} < end; ++{first}) {{")
            return
        text.add("int64 rest = begin;")
        for name, extent in reversed(counters[1:]):
            text.add(f"int64 {name} = rest % ({extent}); rest /= {atomic(extent)};")
        text.add(f"int64 {first} = rest;")
        step = f"++{first}"
        for name, extent in counters[1:]:
            step = f"++{name} == {atomic(extent)} ? ({name} = 0, {step}) : 0"
        text.open(f"for (int64 point = begin; point < end; ++point, ({step})) {{")

    def _tiles(self, text: Text) -> dict[str, tuple[str, str]]:
        """Write the bounds of the tiles at hand; their names by axis."""
        blocks = {}
        for axis, tile in self.facts.tiles.items():
            text.add(f"const int64 {axis}_begin = {axis}_tile * {tile};")
            text.add(f"const int64 {axis}_end = least({axis}_begin + {tile}, {self._extent(axis)});")
            blocks[axis] = (f"{axis}_begin", f"{axis}_end")
        return blocks
