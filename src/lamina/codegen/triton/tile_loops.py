"""Loops over the tiles of a block that a program goes through one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamina.codegen.triton.memory import Memory
from lamina.codegen.triton.nest_analysis import NestAnalysis, size_text
from lamina.codegen.triton.scans import Scanner
from lamina.codegen.triton.source import UnsupportedKernel
from lamina.codegen.triton.text import Text
from lamina.codegen.triton.unrolled import UnrolledLoop
from lamina.ir.index import Expr
from lamina.ir.loops import Load, Reduce

__all__ = ["TileLoops"]

_UNROLL = 4
"""Iterations over single points whose loads are in flight together."""
_UNROLLED_LOADS = 8
"""Most loads of such an iteration; more are enough by themselves."""


class TileLoops:
    """Opens the loops of a nest, in the direction and the pieces that suit what is inside."""

    def __init__(self, facts: NestAnalysis, text: Text, scans: Scanner, memory: Memory, unrolled: UnrolledLoop) -> None:
        self.facts, self.text = facts, text
        self.scans, self.memory, self.unrolled = scans, memory, unrolled
        self._passes: dict[int, int] = {}

    def write(self, k: int, goals: Sequence[int], loads: Sequence[Load], body: Callable[[], None]) -> None:
        """Write the loop over block ``k``, and by ``body`` what is inside: all that ``goals`` need of it.

        ``loads`` are those that may come first: they read no other value.
        """
        facts, text = self.facts, self.text
        scans = self.scans.of_loop(k)
        if scans:
            self.scans.begin(text, scans)
        origin = facts.row_origin(k) if not scans and k in facts.dim else None
        if origin is not None:
            self._peeled(k, origin, goals, body)
            return
        backwards = any(s.reverse for s in scans)
        if backwards and not all(s.reverse for s in scans):
            raise UnsupportedKernel("scans in both directions in one loop")
        if facts.schedule.register_resident:
            self.unrolled.write(text, k, loads, body)
            return
        text.extend(facts.line_text(k, self._open(k, goals, backwards)))
        body()
        text.close()

    def _open(self, k: int, goals: Sequence[int], backwards: bool) -> str:
        """Write the head of a loop; gives where a tile begins. ``backwards``: its scans begin at the end."""
        facts, text = self.facts, self.text
        line, size, extent = facts.lines[k], facts.blocks[k].size, size_text(facts.extents[k])
        start, stages = line if k not in facts.dim else f"{line}_at", self._stages
        count = size_text(facts.pieces(k))
        if facts.shared_loop is not None:
            share = facts.share(k)
            text.open(f"for {line}_of in tl.range(0, {share}, {size}{stages}):")
            end = (share - 1) // size * size
            place = f"{end} - {line}_of" if self._returns(k, goals) else f"{line}_of"
            text.add(f"{start} = {line}_first + {place}")
        elif self._returns(k, goals):
            text.open(f"for {line}_back in tl.range(0, {extent}, {size}{stages}):")
            text.add(f"{start} = ({count} - 1) * {size} - {line}_back")
        elif backwards:
            text.open(f"for {line}_step in tl.range(0, {count}{stages}):")
            last = f"({count} - 1 - {line}_step)"
            text.add(f"{start} = {last}" if size == 1 else f"{start} = {last} * {size}")
        else:
            alone = size == 1 and not stages and self._loads_in(k) <= _UNROLLED_LOADS
            unroll = f", loop_unroll_factor={_UNROLL}" if alone else ""
            text.open(f"for {start} in tl.range(0, {extent}, {size}{stages}{unroll}):")
        return start

    def _peeled(self, k: int, origin: Expr, goals: Sequence[int], body: Callable[[], None]) -> None:
        """A loop over rows that begin at any element: first a tile of the unaligned ends, then the aligned middle.

        ``origin`` is a row's first element; ``peel`` elements are one aligned access.
        """
        facts, text = self.facts, self.text
        line, size, peel = facts.lines[k], facts.blocks[k].size, facts.schedule.peel
        extent, stages = size_text(facts.extents[k]), self._stages
        wide = facts.wide[k]  # what is carried from one turn to the next keeps its type, whatever the origin's is
        points = f"tl.arange(0, {size}){facts.slots(k)}" + (".to(tl.int64)" if wide else "")
        text.add(f"{line}_origin = {facts.text(origin)}")
        head = f"tl.minimum(({peel} - {line}_origin % {peel}) % {peel}, {extent})"
        text.add(f"{line}_head = {head}.to(tl.int{64 if wide else 32})")
        text.add(f"{line}_body = tl.multiple_of(({extent} - {line}_head) // {peel} * {peel}, {peel})")
        text.add(f"{line}_start = tl.multiple_of({line}_origin + {line}_head, {peel})")
        text.add(f"{line}_own = {points}")
        tail = f"{line}_head + {line}_body + {line}_own - {peel}"
        text.add(f"{line} = tl.where({line}_own < {peel}, {line}_own, {tail})")
        ends = f"tl.where({line}_own < {peel}, {line}_own < {line}_head, {line} < {extent})"
        text.add(f"{line}_in = {ends} & ({line}_own < {2 * peel})")
        body()
        if self._returns(k, goals):
            text.open(f"for {line}_back in tl.range(0, {line}_body, {size}{stages}):")
            text.add(f"{line}_at = ({line}_body - 1) // {size} * {size} - {line}_back")
        else:
            text.open(f"for {line}_at in tl.range(0, {line}_body, {size}{stages}):")
        text.add(f"{line}_own = {line}_at + {points}")
        text.add(f"{line} = {line}_head + {line}_own")
        text.add(f"{line}_in = {line}_own < {line}_body")
        with self.memory.aligned(k, origin):
            body()
        text.close()

    @property
    def _stages(self) -> str:
        """The argument that says how many iterations ahead a loop reads."""
        stages = self.facts.schedule.stages
        return f", num_stages={stages}" if stages > 1 else ""

    def _loads_in(self, k: int) -> int:
        """Loads in a loop."""
        return sum(isinstance(e, Load) and k in self.facts.eqn_span(e) for e in self.facts.body)

    def _returns(self, k: int, goals: Sequence[int]) -> bool:
        """Whether a loop runs from the end: every other pass, so that it meets in the cache what was read last.

        Not where the order counts: scans, first places, and points taken one by one, whose loads run together.
        """
        done = self._passes[k] = self._passes.get(k, -1) + 1
        if k not in self.facts.dim or done % 2 == 0:
            return False
        ordered = [e for p in goals if isinstance(e := self.facts.body[p], Reduce) and e.op in ("argmax", "argmin")]
        return not ordered and not self.scans.of_loop(k)
