"""Reductions in generated code: what they accumulate into, one step, and the result."""

from __future__ import annotations

from lamina.codegen.cpp.accumulate import Accumulator, accumulator
from lamina.codegen.cpp.expressions import element, index_text, scalar_type, vector_type
from lamina.codegen.cpp.prefetch import Prefetches
from lamina.codegen.cpp.statements import Array
from lamina.codegen.cpp.text import Goal, Scope, Text
from lamina.ir.loops import Reduce

__all__ = ["BLOCKED_ROWS", "ROWS", "Reductions"]

_STACK_BYTES = 16384
"""Arrays up to this many bytes live on the stack of the thread."""

_BLOCK = 4096
ROWS = 32
"""Rows of a column sum added up one by one before they go into the total. Eager adds up 16, then 16 such sums, ..."""

BLOCKED_ROWS = 128
"""The same where a few rows at a time, a power of two, are added up in registers."""


class Reductions(Prefetches):
    """Writes reductions: into lanes, one value, an array over kept axes, or the place of the best value."""

    def out(self, position: int) -> str:
        eqn = self.facts.body[position]
        assert isinstance(eqn, Reduce)
        return eqn.outs[0]

    def accumulator(self, eqn: Reduce) -> Accumulator:
        return accumulator(eqn.op, self.facts.dtype[eqn.value])

    def folds(self, goal: Goal) -> bool:
        """Whether a goal is a reduction over the vector axis, whose lanes are joined in the end."""
        eqn = self.facts.body[goal.position]
        return isinstance(eqn, Reduce) and not goal.name and self.facts.vector in eqn.axes

    def begin_reduce(self, scope: Scope, opened: frozenset[str], axis: str, position: int) -> None:
        """Declare what a reduction accumulates into, where its loops begin."""
        eqn = self.facts.body[position]
        assert isinstance(eqn, Reduce)
        out, acc = eqn.outs[0], self.accumulator(eqn)
        kept = tuple(a for a in self.facts.kept_axes(eqn) if a not in opened)
        if eqn.op in ("argmax", "argmin"):
            self.begin_best(scope, eqn, kept)
        elif kept:
            self.arrays_begin(scope, out, kept, acc)
            self.targets[out] = "array" if self.facts.vector not in eqn.axes else "fold"
        elif self.facts.vector in eqn.axes:
            direct = axis == self.facts.vector and self.short(axis)
            self.targets[out] = "lanes" if direct or not acc.exact else "total"
            if not direct:
                kind = f"Total<{acc.vector}>" if acc.exact else f"{acc.vector}"
                start = "{}" if acc.exact else acc.start(True)
                scope.text.add(f"{kind} {out}_t = {start};")
                self.targets[out] = "total" if acc.exact else "wide"
        else:
            self.targets[out] = "scalar"
            kind = "f64" if acc.exact else acc.scalar
            scope.text.add(f"{kind} {out}_t = {acc.start_scalar()};")

    def short(self, axis: str) -> bool:
        """Whether the axis is short enough for plain accumulation."""
        extent = self.facts.extent[axis]
        return extent.is_int and extent.const <= _BLOCK and axis not in self.blocks

    def long(self, axis: str, rows: int) -> bool:
        """Whether sums over the axis are made of more than one block of ``rows``."""
        extent = self.facts.extent[axis]
        return not extent.is_int or extent.const > rows

    def begin_total(self, scope: Scope, axis: str, position: int, rows: int) -> None:
        """Give a column sum over many rows a total besides the sum of a block of ``rows``."""
        eqn = self.facts.body[position]
        assert isinstance(eqn, Reduce)
        out = eqn.outs[0]
        kept = self.targets[out] in ("array", "fold") and self.accumulator(eqn).exact
        if kept and self.long(axis, rows):
            total = self.array(scope, f"{out}_total", self.arrays[out].axes, "f32")
            scope.text.add(f"fill({total.pointer}, {total.count()}, 0.0f);")
            self.begin_drain(scope, out, axis, total)

    def begin_drain(self, scope: Scope, out: str, axis: str, total: Array) -> None:
        """Let the sums of ``out`` go into ``total`` a block of rows at a time."""
        lost = self.array(scope, f"{self.arrays[out].pointer}_lost", total.axes, "f32")
        scope.text.add(f"fill({lost.pointer}, {lost.count()}, 0.0f);")
        self.drains[out] = (axis, total)

    def drained(self, out: str, total: Array, call: str) -> str:
        """Statement that moves a block's sums into the total."""
        block = self.arrays[out].pointer
        return f"{call}({total.pointer}, {block}, {block}_lost, {total.count()});"

    def drain_now_and_then(self, text: Text, axis: str, at: str = "") -> None:
        """Long column sums: add up a block of rows, then the blocks; ``at`` counts rows that come in blocks."""
        last = f"({at} & {BLOCKED_ROWS - 1}) == 0" if at else f"({axis} & {ROWS - 1}) == {ROWS - 1}"
        for out, (owner, total) in self.drains.items():
            if owner == axis:
                text.add(f"if ({last}) {self.drained(out, total, 'drain')}")

    def arrays_begin(self, scope: Scope, out: str, kept: tuple[str, ...], acc: Accumulator) -> None:
        array = self.array(scope, f"{out}_sum", kept, "f32" if acc.scalar == "f32" else acc.scalar)
        count = array.count()
        start = acc.start_scalar()
        scope.text.add(f"fill({array.pointer}, {count}, ({acc.scalar}){start});")
        self.arrays[out] = array

    def array(self, scope: Scope, name: str, axes: tuple[str, ...], kind: str) -> Array:
        """Memory for a value over ``axes``: on the stack where it is small, else in scratch memory."""
        extents = []
        begins = []
        for axis in axes:
            if axis in self.blocks:
                begins.append((axis, self.blocks[axis][0]))
                extents.append(str(dict(self.facts.schedule.tile)[axis]))
            else:
                extents.append(index_text(self.facts.extent[axis], {}))
        extents = [e if e.isidentifier() or e.isdigit() else f"({e})" for e in extents]
        made = Array(name, axes, tuple(extents), "flag" if kind == "bool" else kind, tuple(begins))
        if all(e.isdigit() for e in extents):
            count = 1
            for e in extents:
                count *= int(e)
            if scope.stack + count * 8 <= _STACK_BYTES:
                scope.stack += count * 8
                scope.text.add(f"alignas(64) {kind} {name}[{max(count, 1)}];")
                return made
            scope.text.add(f"{kind}* const {name} = {scope.memory.take(kind, str(count))};")
        else:
            scope.text.add(f"{kind}* const {name} = {scope.memory.take(kind, made.count())};")
        return made

    def declare_lanes(self, text: Text, position: int, unroll: int) -> None:
        eqn = self.facts.body[position]
        assert isinstance(eqn, Reduce)
        out, acc = eqn.outs[0], self.accumulator(eqn)
        if self.targets[out] in ("best", "fold bests"):
            text.add(f"{self.best(eqn, True)} {out}_a[{unroll}];")
            start = accumulator(eqn.op[3:], self.facts.dtype[eqn.value]).start(True)
            text.add(f"for (auto& a : {out}_a) a = {{{start}, vi64{{}}}};")
            return
        starts = ", ".join([acc.start(True)] * unroll)
        text.add(f"{acc.vector} {out}_a[{unroll}] = {{{starts}}};")

    def join_lanes(self, text: Text, position: int, unroll: int) -> None:
        eqn = self.facts.body[position]
        assert isinstance(eqn, Reduce)
        out, acc = eqn.outs[0], self.accumulator(eqn)
        target = self.targets[out]
        if target == "best":
            for k in range(unroll):
                text.add(f"{out}_t.join({out}_a[{k}].value, {out}_a[{k}].at);")
            return
        if target == "fold bests":
            for k in range(unroll):
                text.add(self.join_kept(eqn, f"{out}_a[{k}]"))
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

    def vector_accumulate(self, eqn: Reduce) -> str:
        out, acc = eqn.outs[0], self.accumulator(eqn)
        value = self.write.value(eqn.value, True)
        if self.targets[out] in ("best", "fold bests"):
            return f"{_taken(eqn)}({out}_a[k], {value}, {self.place(eqn, True)}, n);  // {eqn.op}"
        if self.targets[out] == "row best":
            return f"{out}_s.{_taken(eqn)}({value}, {self.place(eqn, True)});  // {eqn.op}"
        if self.targets[out] == "bests":
            return self.meet_kept(eqn, True)
        if self.targets[out] == "row":
            return f"{out}_s = {acc.join(f'{out}_s', value, True)};  // {eqn.op}"
        if self.targets[out] == "array":
            array = self.arrays[out]
            kind = "flag" if acc.dtype == "bool" else element(acc.dtype)
            old = f"load_{kind}({array.at()}, n)"
            return f"store_{kind}({array.at()}, {acc.join(old, value, True)}, n);  // {eqn.op}"
        return f"{out}_a[k] = counted({out}_a[k], {acc.join(f'{out}_a[k]', value, True)}, n);  // {eqn.op}"

    def accumulate(self, text: Text, eqn: Reduce) -> None:
        """One step of a reduction in scalar code."""
        out, acc = eqn.outs[0], self.accumulator(eqn)
        value = self.write.value(eqn.value, False)
        if self.targets[out] == "best":
            text.add(f"{out}_t.join({value}, {self.place(eqn, False)});  // {eqn.op}")
        elif self.targets[out] == "bests":
            text.add(self.meet_kept(eqn, False))
        elif self.targets[out] == "array":
            at = self.arrays[out].at()
            text.add(f"*({at}) = {acc.join(f'*({at})', value, False)};  // {eqn.op}")
        else:
            text.add(f"{out}_t = {acc.join(f'{out}_t', value, False)};  // {eqn.op}")

    def end_reduce(self, text: Text, position: int) -> bool:
        """Make the result of a finished reduction a value; whether it is one (and not an array)."""
        eqn = self.facts.body[position]
        assert isinstance(eqn, Reduce)
        out, target = eqn.outs[0], self.targets[eqn.outs[0]]
        if out in self.drains:
            total = self.drains.pop(out)[1]
            text.add(self.drained(out, total, "settle"))
            self.arrays[out] = total
        if target in ("array", "bests", "fold", "fold bests"):
            return False
        kind = scalar_type(eqn.dtype)
        value = f"{self.best_folded(eqn)}.at" if target == "best" else self.rounded(eqn, self.finished(eqn))
        text.add(f"const {kind} {out} = {value};  // {eqn.op} over {', '.join(eqn.axes)}")
        return True

    def finished(self, eqn: Reduce) -> str:
        """What a reduction to one value has accumulated."""
        out, acc = eqn.outs[0], self.accumulator(eqn)
        folded = {"lanes": f"{out}_t", "total": f"value_of({out}_t)", "wide": f"{out}_t"}
        target = self.targets[out]
        return acc.fold(folded[target]) if target in folded else f"{out}_t"

    def start(self, eqn: Reduce) -> str:
        """Start value of a reduction, or of the value half of argmax and argmin."""
        op = eqn.op[3:] if eqn.op in ("argmax", "argmin") else eqn.op
        return accumulator(op, self.facts.dtype[eqn.value]).start_scalar()

    def rounded(self, eqn: Reduce, value: str) -> str:
        if eqn.dtype in ("float16", "bfloat16"):
            return f"round_{'f16' if eqn.dtype == 'float16' else 'bf16'}({value})"
        return value

    def best(self, eqn: Reduce, vector: bool) -> str:
        value = self.facts.dtype[eqn.value]
        largest = "true" if eqn.op == "argmax" else "false"
        if vector:
            return f"Best<{largest}, {vector_type(value)}, vi64>"
        return f"Best<{largest}, {scalar_type(value)}, int64>"

    def place(self, eqn: Reduce, vector: bool) -> str:
        """Position within the reduced axes, in the order the reduction names them."""
        text = ""
        for axis in eqn.axes:
            text = axis if not text else f"({text}) * ({index_text(self.facts.extent[axis], {})}) + {axis}"
        if not vector:
            return f"(int64)({text})"
        if self.facts.vector not in eqn.axes:
            return f"splat_int64({text})"
        stride = "1"
        for axis in reversed(eqn.axes):
            if axis == self.facts.vector:
                break
            stride = f"{stride} * ({index_text(self.facts.extent[axis], {})})"
        return f"index_lanes({text}, {stride})"

    def begin_best(self, scope: Scope, eqn: Reduce, kept: tuple[str, ...]) -> None:
        out = eqn.outs[0]
        start = accumulator(eqn.op[3:], self.facts.dtype[eqn.value]).start
        if kept:
            values = self.array(scope, f"{out}_value", kept, scalar_type(self.facts.dtype[eqn.value]))
            places = self.array(scope, f"{out}_place", kept, "int64")
            scope.text.open(f"for (int64 k = 0; k < {values.count()}; ++k) {{")
            scope.text.add(f"{values.pointer}[k] = {start(False)};")
            scope.text.add(f"{places.pointer}[k] = 0;")
            scope.text.close()
            self.best_values[out], self.arrays[out] = values, places
            self.targets[out] = "bests" if self.facts.vector not in eqn.axes else "fold bests"
            return
        lanes = self.facts.vector in eqn.axes
        self.targets[out] = "best"
        zero = "vi64{}" if lanes else "0"
        scope.text.add(f"{self.best(eqn, lanes)} {out}_t = {{{start(lanes)}, {zero}}};")

    def meet_kept(self, eqn: Reduce, vector: bool) -> str:
        """One step where each kept point has its own best value and place in memory."""
        out, dtype = eqn.outs[0], self.facts.dtype[eqn.value]
        values, places, kind = self.best_values[out].at(), self.arrays[out].at(), element(dtype)
        tail = ", n" if vector else ""
        best = self.best(eqn, vector)
        value = self.write.value(eqn.value, vector)
        place = self.place(eqn, vector)
        return (
            f"{{ {best} b = {{load_{kind}({values}{tail}), load_int64({places}{tail})}}; "
            f"b.{_taken(eqn)}({value}, {place}); "
            f"store_{kind}({values}, b.value{tail}); store_int64({places}, b.at{tail}); }}  // {eqn.op}"
        )

    def join_kept(self, eqn: Reduce, lanes: str) -> str:
        """The best of some lanes meets the best so far of the kept point."""
        out, dtype = eqn.outs[0], self.facts.dtype[eqn.value]
        values, places = self.best_values[out].at(), self.arrays[out].at()
        largest = "true" if eqn.op == "argmax" else "false"
        best = self.best(eqn, False)
        return (
            f"{{ {best} b = {{*({values}), *({places})}}, c = fold_best<{largest}, {scalar_type(dtype)}>({lanes}); "
            f"b.join(c.value, c.at); *({values}) = b.value; *({places}) = b.at; }}"
        )

    def best_folded(self, eqn: Reduce) -> str:
        out = eqn.outs[0]
        if self.facts.vector in eqn.axes:
            value = self.facts.dtype[eqn.value]
            largest = "true" if eqn.op == "argmax" else "false"
            return f"fold_best<{largest}, {scalar_type(value)}>({out}_t)"
        return f"{out}_t"


def _taken(eqn: Reduce) -> str:
    """How a place is taken in: loops go through several axes in any order, through one from its first point."""
    return "join" if len(eqn.axes) > 1 else "meet"
