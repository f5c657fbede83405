"""Instructions that a value of a nest takes, before the nest has a schedule: for vectors along its likely axis."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Div, Expr, Loaded, Mod, as_expr, prod
from lamina.ir.loops import Buffer, Check, Compute, Constant, Equation, Index, Load, Nest, Store, axes_of, defined
from lamina.ir.ops import OPS
from lamina.ir.use_def import UseDef
from lamina.schedule.lanes import LANES

__all__ = ["Cost", "places_of"]

_GATHERED = 2.0
"""Instructions for each element that is loaded by itself."""
_DIVISION = 8.0
"""Instructions that take as long as a division or square root of a vector: an estimate."""
_STRIDED = 3.0
"""Instructions that take as long as loading a vector of elements at a stride: an estimate."""
_NEAR = 1 << 17
"""Bytes that stay in the second-level cache from one use to the next."""
_SHARED = 1 << 23
"""Bytes that stay in the last-level cache."""
_LEVELS = (1.0, 40.0, 80.0)
"""Instructions that reading a vector of 64 bytes takes as long as: from either cache, and from memory."""


class Cost:
    """What equations of ``nest`` take; a vector has points along the axis that most accesses are contiguous along."""

    def __init__(self, nest: Nest, buffers: Mapping[str, Buffer], varies: Mapping[str, frozenset[str]]) -> None:
        self.buffers, self.varies = buffers, varies
        plain = {n for e in nest.body if isinstance(e, Index | Constant) for n in defined(e)}
        self.pairs = {n for n, dtype in UseDef(nest.body).dtypes.items() if DTYPES[dtype].size == 8} - plain
        """Values that are two vectors each: those of 64 bits, but for what follows from places in loops."""
        self.length = {a.name: a.extent.const for a in nest.axes}
        self.axis = {a.name: a for a in nest.axes}
        self.vector = self._vector(nest)
        self.order = [a.name for a in nest.axes if a.name != self.vector] + [self.vector]

    def _vector(self, nest: Nest) -> str:
        score = {a.name: 0 for a in nest.axes}
        for eqn in nest.body:
            if isinstance(eqn, Load | Store):
                place = self.place(eqn)
                weight = self.points(place.axes()) * (3 if isinstance(eqn, Store) else 2)
                for name in place.axes():
                    if place.coefficient(self.axis[name]) == 1:
                        score[name] += weight
        return max(score, key=lambda name: (score[name], nest.axes.index(self.axis[name])))

    def place(self, eqn: Load | Store) -> Expr:
        """The element in memory."""
        strides = self.buffers[eqn.buffer].strides
        return sum((e * s for e, s in zip(eqn.index, strides, strict=True)), as_expr(0))

    def points(self, axes: frozenset[str]) -> int:
        return int(prod(self.axis[a].extent for a in axes).const)

    def runs(self, axes: frozenset[str]) -> int:
        """How many times an equation over ``axes`` is computed: loops that it does not vary over are around it, too."""
        last = max((self.order.index(a) for a in axes), default=-1)
        total = 1
        for name in self.order[: last + 1]:
            total *= self.length[name]
        return total

    def vectors(self, axes: frozenset[str]) -> float:
        """The same in vectors."""
        return self.runs(axes) / (LANES if self.vector in axes else 1)

    def share(self, eqn: Equation, axes: frozenset[str], reuse: int) -> float:
        """Instructions of ``eqn`` for a vector over ``axes``; none where it would be computed ahead itself."""
        over = axes_of(eqn, self.varies)
        if over != axes and self.runs(over) >= reuse * self.points(over):
            return 0.0
        return self.price(eqn) * self.vectors(over) / self.vectors(axes)

    def read(self, axes: frozenset[str], dtype: str) -> float:
        """Instructions that reading a vector of dense values over ``axes`` takes as long as."""
        size = DTYPES[dtype].size
        if self.vector not in axes:
            return 1.0
        total = self.points(axes) * size
        level = _LEVELS[0] if total <= _NEAR else _LEVELS[1] if total <= _SHARED else _LEVELS[2]
        return max(level * size / 4, 1.0)

    def price(self, eqn: Equation) -> float:
        """Instructions each time."""
        if isinstance(eqn, Load | Store):
            return self._access(eqn)
        if isinstance(eqn, Compute):
            wide = DTYPES[eqn.dtype].size == 8
            if not wide and not self.pairs.isdisjoint(eqn.ins):
                return 2.0 * OPS[eqn.op].cost + 3.0  # two halves, whose results are joined
            return float(OPS[eqn.op].cost * (2 if wide else 1))
        if isinstance(eqn, Check):
            return 3.0  # all lanes' conditions become one, and a branch
        if isinstance(eqn, Index):
            return 1.0 + _DIVISION * sum(isinstance(a, Div | Mod) for a in eqn.expr.atoms())
        return 0.0

    def _access(self, eqn: Load | Store) -> float:
        place = self.place(eqn)
        over = axes_of(eqn, self.varies)
        if self.vector not in over:
            return 1.0
        chosen = any(isinstance(a, Loaded) and self.vector in self.varies[a.name] for a in place.atoms())
        step = place.coefficient(self.axis[self.vector])
        if chosen or step is None:
            return _GATHERED * LANES
        if step == 1:
            return self.read(over, self.buffers[eqn.buffer].dtype)
        return 1.0 if step == 0 else _STRIDED


def places_of(eqn: Equation) -> tuple[Expr, ...]:
    """The indices of what is loaded or stored."""
    return eqn.index if isinstance(eqn, Load | Store) else ()
