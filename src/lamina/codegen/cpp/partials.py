"""Reductions over the loop that threads share: each thread its own part, joined in the order of the threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lamina.codegen.cpp.accumulate import Accumulator
from lamina.codegen.cpp.arrays import Array, Arrays
from lamina.codegen.cpp.best_places import BestPlaces, is_place
from lamina.codegen.cpp.column_totals import ColumnTotals
from lamina.codegen.cpp.expressions import atomic, index_text, scalar_type
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.reductions import Reductions, rounded
from lamina.codegen.cpp.row_blocks import RowBlocks
from lamina.codegen.cpp.text import LoopBody, Memory, Scope, Text
from lamina.ir.loops import Reduce

__all__ = ["Partial", "Partials"]


@dataclass(frozen=True, slots=True)
class Partial:
    """A reduction over the shared loop, and the memory that holds each thread's share of it."""

    out: str
    position: int
    eqn: Reduce
    acc: Accumulator
    pointers: tuple[tuple[str, str], ...]
    array: Array | None


@dataclass(frozen=True, slots=True)
class Partials:
    """Writes the threads' shares of reductions, into ``memory`` that all of them can reach."""

    facts: NestAnalysis
    memory: Memory
    arrays: Arrays
    reductions: Reductions
    best: BestPlaces
    totals: ColumnTotals
    row_blocks: RowBlocks

    def allocate(self, text: Text, position: int) -> Partial:
        """Memory for every thread's share of a reduction."""
        eqn = self.facts.reduce(position)
        out, acc = eqn.outs[0], self.reductions.accumulator(eqn)
        kept = self.facts.kept_axes(eqn)
        kind = scalar_type(self.facts.dtype[eqn.value])
        pointers = [(f"{out}_part", kind), *([(f"{out}_place", "int64")] if is_place(eqn) else [])]
        extents = tuple(atomic(index_text(self.facts.extent[a], {})) for a in kept)
        array = Array(f"{out}_part", kept, extents, "flag" if kind == "bool" else kind)
        count = f"threads * {array.count()}" if kept else "threads"
        for pointer, held in pointers:
            text.add(f"{held}* const {pointer} = {self.memory.take(held, count)};")
        return Partial(out, position, eqn, acc, tuple(pointers), array if kept else None)

    def begin(self, scope: Scope, partials: Sequence[Partial], loop_body: LoopBody) -> None:
        """Declare what a thread accumulates into."""
        axis = self.facts.schedule.outer[0] if partials else ""
        for partial in partials:
            if partial.array:
                self._begin_array(scope.text, partial, partial.array)
            else:
                self.reductions.begin(scope, frozenset(), axis, partial.position)
        kept = [p for p in partials if p.array and p.acc.exact]
        rows = self.row_blocks.height(axis, loop_body) if kept else 0
        for partial in kept:
            if blocks := self.totals.blocks(partial.eqn.axes, rows):
                self._begin_total(scope, partial, blocks)

    def _begin_array(self, text: Text, partial: Partial, array: Array) -> None:
        """Point at the thread's own array and fill it with the start value."""
        eqn, count = partial.eqn, atomic(array.count())
        mine = [(f"{partial.out}_own{'_at' if k else ''}", *p) for k, p in enumerate(partial.pointers)]
        for name, pointer, kind in mine:
            text.add(f"{kind}* const {name} = {pointer} + thread * {count};")
            value = self.best.start(eqn, False) if is_place(eqn) else partial.acc.start_scalar()
            start = value if pointer.endswith("_part") else "0"
            text.add(f"fill({name}, {count}, ({kind}){start});")
        places = replace(array, pointer=mine[1][0], kind="int64") if len(mine) > 1 else None
        self.reductions.accumulate_in(eqn, replace(array, pointer=mine[0][0]), places)

    def _begin_total(self, scope: Scope, partial: Partial, blocks: dict[str, int]) -> None:
        """Let a long column sum go into the thread's own array a block of rows at a time."""
        own = self.arrays[partial.out]
        block = self.arrays.allocate(scope, f"{partial.out}_sum", own.axes, "f32")
        scope.text.add(f"fill({block.pointer}, {atomic(block.count())}, 0.0f);")
        self.arrays[partial.out] = block
        self.totals.begin_into(scope, partial.out, blocks, own)

    def end(self, text: Text, partial: Partial) -> None:
        """Hand over the thread's own result."""
        out = partial.out
        if partial.array:
            self.totals.finish(text, out)
        elif is_place(partial.eqn):
            text.add(f"const auto {out}_b = {self.best.folded(partial.eqn)};")
            text.add(f"{out}_part[thread] = {out}_b.value;")
            text.add(f"{out}_place[thread] = {out}_b.at;")
        else:
            text.add(f"{out}_part[thread] = {self.reductions.finished(partial.eqn)};")

    def combine(self, text: Text, partial: Partial) -> None:
        """Join the threads' results into the value the rest of the nest reads."""
        if partial.array is None:
            self._combine_one(text, partial)
            return
        eqn, out, acc = partial.eqn, partial.out, partial.acc
        count, over = atomic(partial.array.count()), f"{eqn.op} over {', '.join(eqn.axes)}"
        if acc.floating and eqn.op == "sum":
            text.add(f"add_parts({out}_part, threads, {count});  // {over}")
            self.arrays[out] = partial.array
            return
        text.open(f"for (int64 t = 1; t < threads; ++t) {{  // {over}")
        text.open(f"for (int64 k = 0; k < {count}; ++k) {{")
        if is_place(eqn):
            text.add(f"{self.best.kind(eqn, False)} b = {{{out}_part[k], {out}_place[k]}};")
            text.add(f"b.join({out}_part[t * {count} + k], {out}_place[t * {count} + k]);")
            text.add(f"{out}_part[k] = b.value;")
            text.add(f"{out}_place[k] = b.at;")
            self.arrays[out] = replace(partial.array, pointer=f"{out}_place", kind="int64")
        else:
            text.add(f"{out}_part[k] = {acc.join(f'{out}_part[k]', f'{out}_part[t * {count} + k]', False)};")
            self.arrays[out] = partial.array
        text.close()
        text.close()

    def _combine_one(self, text: Text, partial: Partial) -> None:
        """Join the threads' results of a reduction to one value."""
        eqn, out, acc = partial.eqn, partial.out, partial.acc
        kind, over = scalar_type(eqn.dtype), f"{eqn.op} over {', '.join(eqn.axes)}"
        if is_place(eqn):
            text.add(f"{self.best.kind(eqn, False)} {out}_t = {{{out}_part[0], {out}_place[0]}};")
            text.add(f"for (int64 t = 1; t < threads; ++t) {out}_t.join({out}_part[t], {out}_place[t]);")
            text.add(f"const {kind} {out} = {out}_t.at;  // {over}")
            return
        text.add(f"{acc.scalar} {out}_t = {out}_part[0];")
        text.add(f"for (int64 t = 1; t < threads; ++t) {out}_t = {acc.join(f'{out}_t', f'{out}_part[t]', False)};")
        text.add(f"const {kind} {out} = {rounded(eqn, f'{out}_t')};  // {over}")
