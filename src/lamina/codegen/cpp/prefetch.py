"""Prefetches: memory that the hardware cannot foresee is asked for some loop steps ahead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lamina.base.dtypes import DTYPES
from lamina.codegen.cpp.addresses import Addresses
from lamina.codegen.cpp.bounds import Bounds
from lamina.codegen.cpp.expressions import SHORT
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.text import LoopBody, Text
from lamina.ir.index import Axis, Expr, Loaded
from lamina.ir.loops import Compute, Load, Store

__all__ = ["Prefetches"]

_AHEAD = 8
"""Rows ahead at loaded places."""
_MOST_BYTES = 1024
"""Bytes of a gathered row that are prefetched at most: sixteen lines, about as many as a core has in flight."""
_LINE = 64
"""Bytes of a cache line of x86-64 and most Arm processors; a wrong value costs speed only."""


@dataclass(frozen=True, slots=True)
class Prefetches:
    """Writes prefetches; they change no result, and an address past the end does no harm."""

    facts: NestAnalysis
    dtypes: Mapping[str, str]
    addresses: Addresses
    bounds: Bounds

    def next_row(self, loop_body: LoopBody) -> list[str]:
        """Of the next row's operands at this place, in the loop of the pass that stores the row."""
        facts, opened, goals = self.facts, loop_body.opened, loop_body.goals
        stores = any(isinstance(facts.body[g.position], Store) and not g.name for g in goals)
        row = next((a for a in reversed(facts.schedule.outer) if facts.extent[a] != 1), None)
        if not facts.schedule.prefetch or not stores or row is None:
            return []
        lines: list[str] = []
        for eqn in facts.body:
            if not isinstance(eqn, Load) or eqn.mask is not None:
                continue
            expr = eqn.index[0]
            loaded = any(isinstance(a, Loaded) for a in expr.atoms())
            whole = facts.axes[eqn.out] >= set(facts.schedule.inner)
            if self._runs(expr) and not loaded and row in expr.axes() <= opened and whole:
                lines.append(f"__builtin_prefetch({self.addresses.at(eqn.buffer, expr, {row: f'({row} + 1)'})});")
        return list(dict.fromkeys(lines))

    def next_places(self, text: Text, opened: frozenset[str], place: Load) -> None:
        """Of the rows at the places that ``place`` will load, where it is the number of a row of other buffers."""
        facts = self.facts
        axis = next((a for a in reversed(facts.order) if a in opened), None)
        expr = place.index[0]
        # Where the place is itself loaded from, nothing says that eight steps ahead lie inside that buffer.
        nested = any(isinstance(a, Loaded) for a in expr.atoms())
        if axis is None or place.mask is not None or nested or not self._steps(expr, axis):
            return
        ahead = f"{axis} + {_AHEAD}"
        rows = [row for row in self._rows_at(place.out) if row[1].axes() <= opened | {facts.vector}]
        if not rows:
            return
        text.open(f"if ({ahead} < {self.bounds.of(axis)[1]}) {{")
        where = self.addresses.at(place.buffer, expr, {axis: f"({ahead})"})
        text.add(f"const int64 next = load_{SHORT[self.dtypes[place.buffer]]}({where});")
        for buffer, row, stored in rows:
            low, high = self.bounds.of(facts.vector or "")
            size = DTYPES[self.dtypes[buffer]].size
            names = {**dict.fromkeys(self._same(place.out), "next"), facts.vector or "": low, axis: f"({ahead})"}
            text.add(f"const char* const row_{buffer} = (const char*)({self.addresses.at(buffer, row, names)});")
            count = f"least(({high} - {low}) * {size}, {_MOST_BYTES})"
            fetch = f"__builtin_prefetch(row_{buffer} + k, {int(stored)})"
            text.add(f"for (int64 k = 0; k < {count}; k += {_LINE}) {fetch};")
        text.close()

    def _rows_at(self, value: str) -> list[tuple[str, Expr, bool]]:
        """Accesses of rows whose number is ``value``: buffer, index, and whether it is a store."""
        found: dict[str, tuple[str, Expr, bool]] = {}
        for eqn in self.facts.body:
            if not isinstance(eqn, Load | Store):
                continue
            expr = eqn.index[0]
            loaded = {a.name for a in expr.atoms() if isinstance(a, Loaded)}
            if loaded and loaded <= self._same(value) and self._runs(expr):
                found[eqn.buffer] = (eqn.buffer, expr, isinstance(eqn, Store))
        return list(found.values())

    def _same(self, value: str) -> set[str]:
        """A value and what is the same wherever it is a valid place."""
        chosen = {e.out for e in self.facts.body if isinstance(e, Compute) and e.op == "where" and value in e.ins[1:]}
        return {value, *chosen}

    def _runs(self, expr: Expr) -> bool:
        """Whether consecutive points of the vector axis are consecutive elements."""
        vector = self.facts.vector
        return vector is not None and expr.coefficient(Axis(vector, self.facts.extent[vector])) == 1

    def _steps(self, expr: Expr, axis: str) -> bool:
        """Whether the index moves by a fixed number of elements along ``axis``, and not along the vector axis."""
        step = expr.coefficient(Axis(axis, self.facts.extent[axis]))
        return step is not None and step != 0 and (self.facts.vector or "") not in expr.axes()
