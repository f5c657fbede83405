"""Reductions in generated code: what they accumulate into, one step, and the result."""

from __future__ import annotations

from typing import Literal

from lamina.codegen.cpp.accumulate import Accumulator, accumulator
from lamina.codegen.cpp.arrays import Array, Arrays
from lamina.codegen.cpp.best_places import BestPlaces, is_place
from lamina.codegen.cpp.bounds import Bounds
from lamina.codegen.cpp.column_totals import ColumnTotals
from lamina.codegen.cpp.expressions import element, scalar_type
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.operands import Operands
from lamina.codegen.cpp.text import Goal, Scope, Text
from lamina.ir.loops import Reduce

__all__ = ["Reductions", "rounded"]

Target = Literal["scalar", "lanes", "wide", "total", "array", "fold", "row", "best", "bests", "fold bests", "row best"]
"""What a reduction accumulates into.

One value: a ``scalar``; ``lanes`` of one vector loop, ``wide`` ones of several, or a ``total`` that blocks go into.
Kept axes: an ``array`` of their points; with the vector axis reduced, lanes that ``fold`` into its element; or a
register that holds a ``row`` of it for a while. Places of best values likewise.
"""


class Reductions:
    """Writes reductions: into lanes, one value, an array over kept axes, or the place of the best value."""

    def __init__(
        self,
        facts: NestAnalysis,
        operands: Operands,
        bounds: Bounds,
        arrays: Arrays,
        best: BestPlaces,
        totals: ColumnTotals,
    ) -> None:
        self.facts, self.operands, self.bounds, self.arrays = facts, operands, bounds, arrays
        self.best, self.totals = best, totals
        self._targets: dict[str, Target] = {}

    def target(self, eqn: Reduce) -> Target:
        """What the reduction accumulates into at present."""
        return self._targets[eqn.outs[0]]

    def accumulator(self, eqn: Reduce) -> Accumulator:
        """How the reduction accumulates."""
        return accumulator(eqn.op, self.facts.dtype[eqn.value])

    def folds(self, goal: Goal) -> bool:
        """Whether a goal is a reduction over the vector axis, whose lanes are joined in the end."""
        eqn = self.facts.body[goal.position]
        return isinstance(eqn, Reduce) and not goal.name and self.facts.vector in eqn.axes

    # ---- around the loops ---------------------------------------------------------------------------------------

    def begin(self, scope: Scope, opened: frozenset[str], axis: str, position: int) -> None:
        """Declare what a reduction accumulates into, where its loops begin, with the one over ``axis``."""
        eqn = self.facts.reduce(position)
        out, acc = eqn.outs[0], self.accumulator(eqn)
        kept = tuple(a for a in self.facts.kept_axes(eqn) if a not in opened)
        lanes = self.facts.vector in eqn.axes
        if is_place(eqn) and kept:
            self.best.begin_kept(scope, eqn, kept)
            self._targets[out] = "fold bests" if lanes else "bests"
        elif is_place(eqn):
            self.best.begin(scope, eqn)
            self._targets[out] = "best"
        elif kept:
            array = self.arrays.allocate(scope, f"{out}_sum", kept, acc.scalar)
            scope.text.add(f"fill({array.pointer}, {array.count()}, ({acc.scalar}){acc.start_scalar()});")
            self.arrays[out] = array
            self._targets[out] = "fold" if lanes else "array"
        elif lanes:
            self._begin_lanes(scope, eqn, axis == self.facts.vector and self.bounds.is_short(axis))
        else:
            self._targets[out] = "scalar"
            kind = "f64" if acc.exact else acc.scalar
            scope.text.add(f"{kind} {out}_t = {acc.start_scalar()};")

    def _begin_lanes(self, scope: Scope, eqn: Reduce, direct: bool) -> None:
        """Declare what lanes are added to, unless one short vector loop gives the result (``direct``)."""
        out, acc = eqn.outs[0], self.accumulator(eqn)
        self._targets[out] = "lanes" if direct or not acc.exact else "total"
        if not direct:
            kind = f"Total<{acc.vector}>" if acc.exact else f"{acc.vector}"
            start = "{}" if acc.exact else acc.start(True)
            scope.text.add(f"{kind} {out}_t = {start};")
            self._targets[out] = "total" if acc.exact else "wide"

    def begin_total(self, scope: Scope, position: int, rows: int) -> None:
        """Give a column sum over many rows a total besides the sum of a block of ``rows``."""
        eqn = self.facts.reduce(position)
        kept = self.target(eqn) in ("array", "fold") and self.accumulator(eqn).exact
        if kept and (blocks := self.totals.blocks(eqn.axes, rows)):
            self.totals.begin(scope, eqn.outs[0], blocks)

    def accumulate_in(self, eqn: Reduce, values: Array, places: Array | None = None) -> None:
        """Accumulate in memory that is filled already; of a place, the best values are in ``values``."""
        lanes = self.facts.vector in eqn.axes
        if places is None:
            self.arrays[eqn.outs[0]] = values
            self._targets[eqn.outs[0]] = "fold" if lanes else "array"
        else:
            self.best.keep(eqn, values, places)
            self._targets[eqn.outs[0]] = "fold bests" if lanes else "bests"

    def end(self, text: Text, position: int) -> bool:
        """Make the result of a finished reduction a value; whether it is one (and not an array)."""
        eqn = self.facts.reduce(position)
        out, target = eqn.outs[0], self.target(eqn)
        self.totals.finish(text, out)
        if target in ("array", "bests", "fold", "fold bests"):
            return False
        kind = scalar_type(eqn.dtype)
        value = f"{self.best.folded(eqn)}.at" if target == "best" else rounded(eqn, self.finished(eqn))
        text.add(f"const {kind} {out} = {value};  // {eqn.op} over {', '.join(eqn.axes)}")
        return True

    def finished(self, eqn: Reduce) -> str:
        """What a reduction to one value has accumulated."""
        out, acc = eqn.outs[0], self.accumulator(eqn)
        folded = {"lanes": f"{out}_t", "total": f"value_of({out}_t)", "wide": f"{out}_t"}
        target = self.target(eqn)
        return acc.fold(folded[target]) if target in folded else f"{out}_t"

    # ---- lanes of a vector loop over a reduced axis ---------------------------------------------------------------

    def declare_lanes(self, text: Text, position: int, unroll: int) -> None:
        """Declare ``unroll`` vectors of lanes before a vector loop."""
        eqn = self.facts.reduce(position)
        out, acc = eqn.outs[0], self.accumulator(eqn)
        if is_place(eqn):
            text.add(f"{self.best.kind(eqn, True)} {out}_a[{unroll}];")
            text.add(f"for (auto& a : {out}_a) a = {{{self.best.start(eqn, True)}, vi64{{}}}};")
            return
        starts = ", ".join([acc.start(True)] * unroll)
        text.add(f"{acc.vector} {out}_a[{unroll}] = {{{starts}}};")

    def join_lanes(self, text: Text, position: int, unroll: int) -> None:
        """Join the vectors of lanes behind a vector loop."""
        eqn = self.facts.reduce(position)
        out, acc = eqn.outs[0], self.accumulator(eqn)
        target = self.target(eqn)
        if target == "best":
            for k in range(unroll):
                text.add(f"{out}_t.join({out}_a[{k}].value, {out}_a[{k}].at);")
            return
        if target == "fold bests":
            for k in range(unroll):
                text.add(self.best.join_kept(eqn, f"{out}_a[{k}]"))
            return
        joined = [f"{out}_a[{k}]" for k in range(unroll)]
        while len(joined) > 1:
            joined = [f"({acc.join(a, b, True)})" for a, b in zip(joined[::2], joined[1::2], strict=True)]
        if target == "lanes":
            text.add(f"const {acc.vector} {out}_t = {joined[0]};")
        elif target == "total":
            text.add(f"add_to({out}_t, {joined[0]});")
        elif target == "fold":
            at = self.arrays[out].at()
            text.add(f"*({at}) = {acc.join(f'*({at})', acc.fold(joined[0]), False)};")
        else:
            text.add(f"{out}_t = {acc.join(f'{out}_t', joined[0], True)};")

    # ---- rows of an array in registers ----------------------------------------------------------------------------

    def begin_row(self, text: Text, eqn: Reduce) -> None:
        """In a vector loop over kept points: accumulate in a register what else goes to memory at each step."""
        out = eqn.outs[0]
        if self.target(eqn) == "bests":
            text.add(f"{self.best.kind(eqn, True)} {out}_s = {{{self.best.start(eqn, True)}, vi64{{}}}};")
            self._targets[out] = "row best"
        else:
            acc = self.accumulator(eqn)
            text.add(f"{acc.vector} {out}_s = {acc.start(True)};")
            self._targets[out] = "row"

    def end_row(self, text: Text, eqn: Reduce, joining: bool) -> None:
        """Put the register into memory: the whole result, or ``joining`` what is there already."""
        out, array = eqn.outs[0], self.arrays[eqn.outs[0]]
        if self.target(eqn) == "row best":
            text.add(f"store_int64({array.at()}, {out}_s.at, n);")
            self._targets[out] = "bests"
            return
        value = f"{out}_s"
        if joining:
            value = self.accumulator(eqn).join(f"load_{array.kind}({array.at()}, n)", value, True)
        text.add(f"store_{array.kind}({array.at()}, {value}, n);")
        self._targets[out] = "array"

    # ---- one step -------------------------------------------------------------------------------------------------

    def step_lanes(self, eqn: Reduce) -> str:
        """One step in a vector loop."""
        out, acc, target = eqn.outs[0], self.accumulator(eqn), self.target(eqn)
        if target in ("best", "fold bests"):
            return self.best.step_lanes(eqn)
        if target == "row best":
            return self.best.step_row(eqn)
        if target == "bests":
            return self.best.step_kept(eqn, True)
        value = self.operands.value(eqn.value, True)
        if target == "row":
            return f"{out}_s = {acc.join(f'{out}_s', value, True)};  // {eqn.op}"
        if target == "array":
            array = self.arrays[out]
            kind = "flag" if acc.dtype == "bool" else element(acc.dtype)
            old = f"load_{kind}({array.at()}, n)"
            return f"store_{kind}({array.at()}, {acc.join(old, value, True)}, n);  // {eqn.op}"
        return f"{out}_a[k] = counted({out}_a[k], {acc.join(f'{out}_a[k]', value, True)}, n);  // {eqn.op}"

    def step(self, eqn: Reduce) -> str:
        """One step in scalar code."""
        out, acc, target = eqn.outs[0], self.accumulator(eqn), self.target(eqn)
        if target == "best":
            return self.best.step(eqn)
        if target == "bests":
            return self.best.step_kept(eqn, False)
        value = self.operands.value(eqn.value, False)
        total = f"*({self.arrays[out].at()})" if target == "array" else f"{out}_t"
        return f"{total} = {acc.join(total, value, False)};  // {eqn.op}"


def rounded(eqn: Reduce, value: str) -> str:
    """A result rounded to the reduction's type, where that is one of 16 bits."""
    if eqn.dtype in ("float16", "bfloat16"):
        return f"round_{'f16' if eqn.dtype == 'float16' else 'bf16'}({value})"
    return value
