"""Places of greatest and least values: the best value so far goes with its place."""

from __future__ import annotations

from lamina.codegen.cpp.accumulate import accumulator
from lamina.codegen.cpp.arrays import Array, Arrays
from lamina.codegen.cpp.expressions import element, index_text, scalar_type, vector_type
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.operands import Operands
from lamina.codegen.cpp.text import Scope
from lamina.ir.loops import Reduce

__all__ = ["BestPlaces", "is_place"]


def is_place(eqn: Reduce) -> bool:
    """Whether a reduction gives the place of a value."""
    return eqn.op in ("argmax", "argmin")


class BestPlaces:
    """Texts of the reductions to places, and where the values are whose places are kept in arrays."""

    def __init__(self, facts: NestAnalysis, operands: Operands, arrays: Arrays) -> None:
        self.facts, self.operands, self.arrays = facts, operands, arrays
        self._values: dict[str, Array] = {}

    def keep(self, eqn: Reduce, values: Array, places: Array) -> None:
        """The best values so far are in ``values``, their places in ``places``."""
        self._values[eqn.outs[0]], self.arrays[eqn.outs[0]] = values, places

    def begin(self, scope: Scope, eqn: Reduce) -> None:
        """Declare the best of one value, or of each lane where the vector axis is reduced."""
        lanes = self.facts.vector in eqn.axes
        zero = "vi64{}" if lanes else "0"
        scope.text.add(f"{self.kind(eqn, lanes)} {eqn.outs[0]}_t = {{{self.start(eqn, lanes)}, {zero}}};")

    def begin_kept(self, scope: Scope, eqn: Reduce, axes: tuple[str, ...]) -> None:
        """Declare and fill arrays of a best value and its place for each point of ``axes``."""
        out = eqn.outs[0]
        values = self.arrays.allocate(scope, f"{out}_value", axes, scalar_type(self.facts.dtype[eqn.value]))
        places = self.arrays.allocate(scope, f"{out}_place", axes, "int64")
        scope.text.open(f"for (int64 k = 0; k < {values.count()}; ++k) {{")
        scope.text.add(f"{values.pointer}[k] = {self.start(eqn, False)};")
        scope.text.add(f"{places.pointer}[k] = 0;")
        scope.text.close()
        self.keep(eqn, values, places)

    def start(self, eqn: Reduce, vector: bool) -> str:
        """The value that any other is better than."""
        return accumulator(eqn.op[3:], self.facts.dtype[eqn.value]).start(vector)

    def kind(self, eqn: Reduce, vector: bool) -> str:
        """The C++ type of a best value with its place."""
        value = self.facts.dtype[eqn.value]
        if vector:
            return f"Best<{_largest(eqn)}, {vector_type(value)}, vi64>"
        return f"Best<{_largest(eqn)}, {scalar_type(value)}, int64>"

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

    def step(self, eqn: Reduce) -> str:
        """One step towards a single best value, in scalar code."""
        value = self.operands.value(eqn.value, False)
        return f"{eqn.outs[0]}_t.join({value}, {self.place(eqn, False)});  // {eqn.op}"

    def step_lanes(self, eqn: Reduce) -> str:
        """One step of the lanes of a vector loop."""
        value = self.operands.value(eqn.value, True)
        return f"{_taken(eqn)}({eqn.outs[0]}_a[k], {value}, {self.place(eqn, True)}, n);  // {eqn.op}"

    def step_row(self, eqn: Reduce) -> str:
        """One step of points side by side, each with its own best value in a register."""
        value = self.operands.value(eqn.value, True)
        return f"{eqn.outs[0]}_s.{_taken(eqn)}({value}, {self.place(eqn, True)});  // {eqn.op}"

    def step_kept(self, eqn: Reduce, vector: bool) -> str:
        """One step where each kept point has its own best value and place in memory."""
        out, dtype = eqn.outs[0], self.facts.dtype[eqn.value]
        values, places, kind = self._values[out].at(), self.arrays[out].at(), element(dtype)
        tail = ", n" if vector else ""
        best = self.kind(eqn, vector)
        value = self.operands.value(eqn.value, vector)
        place = self.place(eqn, vector)
        return (
            f"{{ {best} b = {{load_{kind}({values}{tail}), load_int64({places}{tail})}}; "
            f"b.{_taken(eqn)}({value}, {place}); "
            f"store_{kind}({values}, b.value{tail}); store_int64({places}, b.at{tail}); }}  // {eqn.op}"
        )

    def join_kept(self, eqn: Reduce, lanes: str) -> str:
        """The best of some lanes meets the best so far of the kept point."""
        out, dtype = eqn.outs[0], self.facts.dtype[eqn.value]
        values, places = self._values[out].at(), self.arrays[out].at()
        best, folded = self.kind(eqn, False), f"fold_best<{_largest(eqn)}, {scalar_type(dtype)}>({lanes})"
        return (
            f"{{ {best} b = {{*({values}), *({places})}}, c = {folded}; "
            f"b.join(c.value, c.at); *({values}) = b.value; *({places}) = b.at; }}"
        )

    def folded(self, eqn: Reduce) -> str:
        """The best of all lanes, with its place."""
        out = eqn.outs[0]
        if self.facts.vector in eqn.axes:
            return f"fold_best<{_largest(eqn)}, {scalar_type(self.facts.dtype[eqn.value])}>({out}_t)"
        return f"{out}_t"


def _largest(eqn: Reduce) -> str:
    return "true" if eqn.op == "argmax" else "false"


def _taken(eqn: Reduce) -> str:
    """How a place is taken in: loops go through several axes in any order, through one from its first point."""
    return "join" if len(eqn.axes) > 1 else "meet"
