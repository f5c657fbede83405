"""Where a nest about to be cut for a GPU is contiguous in memory, and what it moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Axis, Expr, as_expr, prod
from lamina.ir.loops import Buffer, Equation, Load, Store
from lamina.schedule.accesses import gathers
from lamina.schedule.gpu_cutting import ACROSS, SHORT, NestToCut, axes_of
from lamina.schedule.gpu_fast_axis import fast_of, near_step
from lamina.schedule.gpu_work import SECTOR

__all__ = ["Accesses"]


class Accesses:
    """The accesses of one nest to its buffers."""

    def __init__(self, facts: NestToCut, buffers: Mapping[str, Buffer]) -> None:
        self.facts, self.buffers = facts, buffers

    @cached_property
    def offsets(self) -> list[tuple[Load | Store, Expr]]:
        """Accesses with their distance from the buffer's first element."""
        found: list[tuple[Load | Store, Expr]] = []
        for eqn in self.facts.body:
            if isinstance(eqn, Load | Store):
                strides = self.buffers[eqn.buffer].strides
                offset = sum((i * s for i, s in zip(eqn.index, strides, strict=True)), as_expr(0))
                found.append((eqn, offset))
        return found

    def fast(self) -> str | None:
        """The axis along which most bytes are contiguous."""
        runs = [
            (offset.axes(), name, self.facts.size(offset.axes()))
            for _, offset in self.offsets
            for name in offset.axes()
            if offset.coefficient(self.facts.axes[name]) == 1
        ]
        near = [
            (offset.axes(), along, self.facts.size(offset.axes()))
            for _, offset in self.offsets
            if (along := near_step(offset, self.facts.nest.axes)) is not None
        ]
        return fast_of(self.facts.nest, runs, near)

    def inner(self) -> frozenset[str]:
        """Of several sets of reduced axes the one whose results the others need, else the one with the fast axis."""
        for p in self.facts.reduces:
            after = self.facts.depending({p})
            if any(q in after and self.facts.reduce(q).axes != self.facts.reduce(p).axes for q in self.facts.reduces):
                return frozenset(self.facts.reduce(p).axes)
        fast = self.fast()
        return next((s for s in self.facts.sets if fast in s), self.facts.sets[0])

    @cached_property
    def loads(self) -> list[tuple[Load, Expr]]:
        """The loads, with their distance from the buffer's first element."""
        return [(e, o) for e, o in self.offsets if isinstance(e, Load)]

    @cached_property
    def large(self) -> list[Expr]:
        """Distances of the large operands that are read."""
        whole = self.facts.size(self.facts.axes)
        return [o for _, o in self.loads if self.facts.size(o.axes()) * 8 >= whole]

    def contiguous(self, names: Iterable[str]) -> str | None:
        """One of these axes along which some large operand is contiguous, beside the fast axis perhaps."""
        names = list(names)
        wide = [a for a in names if self.facts.size(self.continued(a, names)) >= ACROSS // 2]
        return next((a for o in self.large for a in wide if o.coefficient(self.facts.axes[a]) == 1), None)

    def continued(self, fast: str, names: Iterable[str]) -> list[str]:
        """An axis with those of ``names`` that continue it in the large operands which are contiguous along it."""
        run = [fast]
        axes = self.facts.axes
        offsets = [o for o in self.large if o.coefficient(axes[fast]) == 1]
        while self.facts.size(run) < SHORT and offsets:
            step = prod(axes[a].extent for a in run)
            after = [a for a in names if a not in run and all(o.coefficient(axes[a]) == step for o in offsets)]
            if len(after) != 1:
                break
            run.append(after[0])
        return run

    def short(self, axis: str) -> bool:
        """Whether an axis is so short that reading along it alone is reading narrow pieces."""
        return self.facts.axes[axis].extent.is_int and self.facts.axes[axis].extent.const < SHORT

    def moved(self, body: list[Equation]) -> int:
        """Bytes that the equations load: whole sectors of memory at places that are loaded themselves."""
        loads = {(e.buffer, e.index): e for e in body if isinstance(e, Load)}
        return sum(self.facts.size(self.facts.values.get(e.out, axes_of(e))) * self.fetched(e) for e in loads.values())

    def fetched(self, eqn: Load) -> int:
        """Bytes that memory moves for an element."""
        size, axes = DTYPES[eqn.dtype].size, self.facts.axes
        along = any(e.coefficient(axes[a]) == 1 for e in eqn.index[-1:] for a in e.axes() if a in axes)
        return size if along or not gathers(eqn) else max(size, SECTOR)

    def stuck(self, axis: Axis) -> bool:
        """Whether some index is not linear in the axis."""
        return any(offset.coefficient(axis) is None for _, offset in self.offsets)
