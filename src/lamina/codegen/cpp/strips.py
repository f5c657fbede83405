"""The innermost loop, a vector of consecutive points at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lamina.codegen.cpp.bounds import BLOCK, Bounds
from lamina.codegen.cpp.needs import Needs
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.operands import Operands
from lamina.codegen.cpp.prefetch import Prefetches
from lamina.codegen.cpp.reductions import Reductions
from lamina.codegen.cpp.scans import Scans
from lamina.codegen.cpp.segments import cuts, decided
from lamina.codegen.cpp.skips import condition
from lamina.codegen.cpp.text import LoopBody, Text
from lamina.codegen.cpp.vector_body import VectorBody
from lamina.ir.loops import Compute, Store
from lamina.ir.ops import OPS

__all__ = ["Strips"]

_MOST_CUTS = 6
"""Places where one loop is cut for conditions on its axis at most: each cut copies the loop's text."""
_MOST_VECTORS = 4
"""Vectors that are added up apart."""


@dataclass(frozen=True, slots=True)
class Strips:
    """Writes loops over the vector axis."""

    facts: NestAnalysis
    bounds: Bounds
    operands: Operands
    needs: Needs
    body: VectorBody
    reductions: Reductions
    scans: Scans
    prefetches: Prefetches

    def write(self, text: Text, axis: str, loop_body: LoopBody) -> None:
        """Write the loop over the vector axis ``axis``, in pieces where that makes conditions constant."""
        folding = [g.position for g in loop_body.goals if self.reductions.folds(g)]
        if not folding and self._segments(text, axis, loop_body):
            return
        begin, end = self.bounds.of(axis)
        when = condition(self.facts, loop_body)
        with self.operands.deciding({when: True} if when else {}):
            body = self.body.lines(loop_body)
        needed = f"if ({when}) " if when else ""
        apart = min(self.body.accumulators(loop_body), self._filled(axis)) if folding else 1
        unroll = self.facts.schedule.unroll or apart
        totals = any(self.reductions.target(self.facts.reduce(p)) == "total" for p in folding)
        blocks = totals and not self.bounds.is_short(axis)
        if blocks:
            start = f"int64 {axis}_block = {begin}"
            text.open(f"{needed}for ({start}; {axis}_block < {end}; {axis}_block += {BLOCK}) {{")
            begin, end = f"{axis}_block", f"least({axis}_block + {BLOCK}, {end})"
        for position in folding:
            self.reductions.declare_lanes(text, position, unroll)
        extent = self.facts.extent[axis]
        even = extent.is_int and extent.const % self._lanes == 0 and not self.bounds.is_block(axis) and not blocks
        call = f"strip{'_even' if even else ''}<{unroll}>"
        if self.scans.run_backward(axis, loop_body):
            call = "strip_back"
        text.open(f"{'' if blocks else needed}{call}({begin}, {end}, [&](int64 {axis}, auto n, int k) STEP {{")
        for line in [] if folding else self.prefetches.next_row(loop_body.within(axis)):
            text.add(line)
        for line in body:
            text.add(line)
        text.close("});")
        for position in folding:
            self.reductions.join_lanes(text, position, unroll)
        if blocks:
            text.close()

    def _segments(self, text: Text, axis: str, loop_body: LoopBody) -> bool:
        """Cut the loop where conditions on the axis change, if there are any such."""
        positions = self.needs.of(loop_body.known, loop_body.goals)
        places = cuts(self.facts, positions)
        if not 0 < len(places) <= _MOST_CUTS or self.scans.along(axis, loop_body):
            return False
        edges = [0, *places, self.facts.extent[axis].const]
        if not self._worth_cutting(edges, positions | {goal.position for goal in loop_body.goals}):
            return False
        begin, end = self.bounds.of(axis)
        for low, high in pairwise(edges):
            with self.operands.deciding(decided(self.facts, positions, low)):
                whole = not self.bounds.is_block(axis)
                first, last = (str(low), str(high)) if whole else (f"most({begin}, {low})", f"least({end}, {high})")
                even = "_even" if whole and (high - low) % self._lanes == 0 else ""
                text.open(f"strip{even}<1>({first}, {last}, [&](int64 {axis}, auto n, int k) STEP {{")
                for line in self.body.lines(loop_body):
                    text.add(line)
                text.close("});")
        return True

    def _worth_cutting(self, edges: Sequence[int], positions: set[int]) -> bool:
        """Whether pieces between ``edges`` cost less than twice what the whole does: a short piece is a vector, too.

        Where a condition decides more than which elements are loaded, what it leaves out counts for more.
        """
        whole = -(-edges[-1] // self._lanes)
        pieces = sum(-(-(high - low) // self._lanes) for low, high in pairwise(edges))
        known = {name for point in edges[:-1] for name in decided(self.facts, positions, point)}
        eqns = [self.facts.body[p] for p in positions]
        chosen = {e.ins[0] for e in eqns if isinstance(e, Compute) and e.op == "where"}
        chosen |= {e.mask for e in eqns if isinstance(e, Store) and e.mask is not None}
        work = sum(OPS[e.op].cost for e in eqns if isinstance(e, Compute) and e.out not in known)
        dear = pieces >= 2 * whole and pieces * work > whole * (work + len(known))
        return not dear or not known.isdisjoint(chosen)

    @property
    def _lanes(self) -> int:
        """Elements of 32 bits of a vector."""
        return 16 if self.facts.schedule.width == 64 else 8

    def _filled(self, axis: str) -> int:
        """How many vectors, a power of two, hold all points of ``axis``, at most as many as are added up apart."""
        extent, lanes = self.facts.extent[axis], max(self.facts.schedule.width // 4, 1)
        return next((n for n in (1, 2) if extent.is_int and extent.const <= n * lanes), _MOST_VECTORS)
