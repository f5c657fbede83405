"""Loads: of one element, of consecutive ones, of ones at regular distances, or lane by lane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lamina.codegen.cpp.addresses import Addresses, Stretches
from lamina.codegen.cpp.expressions import SHORT, element, index_text, literal, splat, vector_type
from lamina.codegen.cpp.index_vectors import grows_slowly
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.operands import Operands
from lamina.ir.loops import Load
from lamina.ir.plan import furthest

__all__ = ["Loads"]

_PICKED = ("f32", "int32")
"""Element types that are loaded from places a few apart by a call."""


@dataclass(frozen=True, slots=True)
class Loads:
    """Texts of a nest's loads. ``dtypes`` gives the element type of every buffer."""

    facts: NestAnalysis
    dtypes: Mapping[str, str]
    operands: Operands
    addresses: Addresses

    def load(self, eqn: Load, vector: bool) -> str:
        """The expression for a load of one element, or of the elements of a vector of points."""
        decided = self.operands.with_mask_decided(eqn)
        if decided is None:
            fill = literal(eqn.fill, eqn.dtype)
            return splat(eqn.dtype, fill) if vector else fill
        return self._load(decided, vector)

    def _load(self, eqn: Load, vector: bool) -> str:
        kind = SHORT[self.dtypes[eqn.buffer]]
        expr = eqn.index[0]
        if not vector:
            text = f"load_{kind}({self.addresses.at(eqn.buffer, expr)})"
            if eqn.mask is None:
                return text
            return f"({self.operands.value(eqn.mask, False)} ? {text} : {literal(eqn.fill, eqn.dtype)})"
        if self.addresses.stride(expr) == 1:
            return self._consecutive(eqn)
        if self.addresses.stride(expr) == 0:
            return self._repeated(eqn)
        if eqn.mask is None and self.addresses.stride(expr) == -1:
            return f"backward_{kind}({self.addresses.at(eqn.buffer, expr)}, n)"
        step = self.addresses.step(expr, furthest(self.facts.schedule.width)) if eqn.mask is None else 0
        if step:
            return f"stepped_{kind}<{step}>({self.addresses.at(eqn.buffer, expr)}, n)"
        factor = self.addresses.stride(expr)
        if factor is not None and eqn.mask is None and kind in _PICKED:
            place = self.addresses.at(eqn.buffer, expr)
            return f"picked_{kind}({place}, {index_text(factor, {})}, lane_count(n))"
        found = self.addresses.cycle(expr)
        if found is None:
            return self._in_stretches(eqn, self._load_each(eqn, *self.addresses.lanes(expr)))
        place, axis = found.base(index_text(found.places.rest, self.addresses.constants(expr))), self.facts.vector or ""
        where = ""
        if eqn.mask is not None:
            where = f"{self.operands.value(eqn.mask, True)}, {splat(eqn.dtype, literal(eqn.fill, eqn.dtype))}"
        whole = found.load(self.dtypes[eqn.buffer], f"{eqn.buffer} + {place}", where)
        if whole is None:
            return self._in_stretches(eqn, found.written(self._load_each(eqn, "", f"{place} + at[k]")))
        return self._steady(eqn, axis, whole) if not where and grows_slowly(expr, axis) else whole

    def _consecutive(self, eqn: Load) -> str:
        """A load of elements that lie side by side."""
        kind, where = SHORT[self.dtypes[eqn.buffer]], self.addresses.at(eqn.buffer, eqn.index[0])
        if eqn.mask is None:
            return f"load_{kind}({where}, n)"
        fill = splat(eqn.dtype, literal(eqn.fill, eqn.dtype))
        if not self.operands.is_vector(eqn.mask):
            return f"({self.operands.value(eqn.mask, False)} ? load_{kind}({where}, n) : {fill})"
        return f"masked_{kind}({where}, {self.operands.value(eqn.mask, True)}, {fill}, n)"

    def _in_stretches(self, eqn: Load, each: str) -> str:
        """``each`` where the vector's elements do not lie side by side, if in most vectors they do.

        Those on either side of a jump do: then it takes two loads.
        """
        found = self.addresses.stretches(eqn.index[0])
        if found is None:
            return each
        if found.first is not None:
            each = self._jumped(eqn, found)
        return f"({found.unbroken} ? {self._consecutive(eqn)} : {each})"

    def _jumped(self, eqn: Load, found: Stretches) -> str:
        """A load of elements that lie side by side but for one jump."""
        first, second = self.addresses.at(eqn.buffer, eqn.index[0]), f"{eqn.buffer} + ({found.behind})"
        call = f"jumped_{SHORT[self.dtypes[eqn.buffer]]}({first}, {second}, {found.first}, "
        if eqn.mask is None:
            return f"{call}n)"
        fill = splat(eqn.dtype, literal(eqn.fill, eqn.dtype))
        if self.operands.is_vector(eqn.mask):
            return f"{call}{self.operands.value(eqn.mask, True)}, {fill}, n)"
        return f"({self.operands.value(eqn.mask, False)} ? {call}n) : {fill})"

    def _load_each(self, eqn: Load, declare: str, index: str) -> str:
        """Lanes loaded one by one; ``declare`` stands before ``index``, that of lane ``k``."""
        expr, kind = eqn.index[0], SHORT[self.dtypes[eqn.buffer]]
        text = f"load_{kind}({eqn.buffer} + {index})"
        lane_kind = {"vi32": "int32"}.get(vector_type(eqn.dtype) or "", element(eqn.dtype))
        lane_kind = "flag" if eqn.dtype == "bool" else lane_kind
        axis = self.facts.vector or ""
        if eqn.mask is not None and self.operands.is_vector(eqn.mask):
            fill = splat(eqn.dtype, literal(eqn.fill, eqn.dtype))
            each = f"chosen_{lane_kind}({eqn.mask}, {fill}, n, [&](int64 k) STEP {{ {declare}return {text}; }})"
            return self._steady(eqn, axis, each) if grows_slowly(expr, axis) else each
        if eqn.mask is not None:
            text = f"{self.operands.value(eqn.mask, False)} ? {text} : {literal(eqn.fill, eqn.dtype)}"
        each = f"lanes_{lane_kind}(lane_count(n), [&](int64 k) STEP {{ {declare}return {text}; }})"
        return self._steady(eqn, axis, each) if eqn.mask is None and grows_slowly(expr, axis) else each

    def _steady(self, eqn: Load, axis: str, each: str) -> str:
        """A load at places that never decrease: one element where the first lane's and the last one's are the same."""
        constants = self.addresses.constants(eqn.index[0])
        last = index_text(eqn.index[0], {**constants, axis: f"({axis} + lane_count(n) - 1)"})
        first = index_text(eqn.index[0], constants)
        return f"({first} == {last} ? {self._repeated(eqn)} : {each})"

    def _repeated(self, eqn: Load) -> str:
        """One element in all lanes: a load that varies along the vector axis by its mask only."""
        one = f"load_{SHORT[self.dtypes[eqn.buffer]]}({self.addresses.at(eqn.buffer, eqn.index[0])})"
        every = splat(eqn.dtype, one)
        if eqn.mask is None:
            return every
        fill = splat(eqn.dtype, literal(eqn.fill, eqn.dtype))
        if not self.operands.is_vector(eqn.mask):
            return f"({self.operands.value(eqn.mask, False)} ? {every} : {fill})"
        return f"(any_lane({eqn.mask} & lanes(n)) ? select({eqn.mask}, {every}, {fill}) : {fill})"
