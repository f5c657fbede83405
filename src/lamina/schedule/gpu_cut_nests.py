"""The nests that a nest is cut into: new buffers between them, and why it was cut."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.base.target import Target
from lamina.ir.index import Axis, as_expr
from lamina.ir.loops import Buffer, Check, Equation, Index, Load, Nest, Random, Reduce, Store, row_major_strides
from lamina.schedule.gpu_cut_accesses import Accesses
from lamina.schedule.gpu_cutting import NestToCut
from lamina.schedule.simplify import rename

__all__ = ["NewNests"]


@dataclass(frozen=True, slots=True)
class NewNests:
    """Makes nests of parts of one. New buffers are added to ``buffers``, reasons to ``decisions``."""

    facts: NestToCut
    accesses: Accesses
    target: Target
    buffers: dict[str, Buffer]
    decisions: list[Decision]

    def nest_of(self, suffix: str, axes: Iterable[Axis], body: list[Equation]) -> Nest:
        used: set[str] = set()
        for eqn in body:
            if isinstance(eqn, Load | Store):
                used.update(a for e in eqn.index for a in e.axes())
            elif isinstance(eqn, Index):
                used |= eqn.expr.axes()
            elif isinstance(eqn, Random):
                used |= eqn.index.axes()
            elif isinstance(eqn, Reduce):
                used.update(eqn.axes)
        return Nest(f"{self.facts.nest.name}_{suffix}", tuple(a for a in axes if a.name in used), tuple(body))

    def temporary(self, name: str, dtype: str, axes: Iterable[Axis]) -> Buffer:
        """A new contiguous buffer over these axes."""
        shape = tuple(a.extent for a in axes)
        buffer = Buffer(f"{self.facts.nest.name}_{name}", dtype, shape, row_major_strides(shape), self._device())
        self.buffers[buffer.name] = buffer
        return buffer

    def saved(self, names: Iterable[str]) -> tuple[list[Equation], dict[str, Load]]:
        """Stores of values into new buffers, and the loads that read them back."""
        stores: list[Equation] = []
        loads: dict[str, Load] = {}
        for name in names:
            eqn = self.facts.use_def.definition(name)
            assert not isinstance(eqn, Store | Check)
            axes = [a for a in self.facts.nest.axes if a.name in self.facts.values[name]]
            buffer = self.temporary(name, eqn.dtype, axes)
            index = tuple(as_expr(a) for a in axes)
            stores.append(Store(buffer.name, index, name, origin=eqn.origin))
            loads[name] = Load(name, buffer.name, index, eqn.dtype, origin=eqn.origin)
        return stores, loads

    def backwards(self, nest: Nest) -> Nest:
        """The nest from the last to the first point of its slowest axis: it begins with what the reductions before it
        read last, and the second-level cache still holds.
        """
        if any(isinstance(e, Reduce) for e in nest.body) or self.accesses.moved(list(nest.body)) < self.target.l2_bytes:
            return nest
        steps = dict.fromkeys((a.name for a in nest.axes), 0)
        for offset in self.accesses.large:
            for axis in nest.axes:
                coef = offset.coefficient(axis)
                if coef is None:
                    return nest
                steps[axis.name] = max(steps[axis.name], coef.const if coef.is_int else 0)
        slowest = max(nest.axes, key=lambda a: steps[a.name])
        if steps[slowest.name] <= 1 or not slowest.extent.is_int:
            return nest
        place = as_expr(slowest.extent.const - 1) - as_expr(slowest)
        return replace(nest, body=tuple(rename(e, {}, {slowest: place}) for e in nest.body))

    def decide(self, kind: str, reason: Reason) -> None:
        self.decisions.append(Decision("cut", (self.facts.nest.name, kind), True, reason))

    def _device(self) -> str:
        """The device that the nest's memory is on."""
        accesses = (e for e in self.facts.body if isinstance(e, Load | Store))
        return next((self.buffers[e.buffer].device for e in accesses), "cuda")
