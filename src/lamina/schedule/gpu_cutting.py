"""A nest about to be cut for a GPU: what its reductions depend on, where it is contiguous, nests of parts of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property

from lamina.base.decision import Decision
from lamina.base.dtypes import DTYPES
from lamina.ir.index import Axis, Expr, Loaded, as_expr, prod
from lamina.ir.loops import (
    Buffer,
    Check,
    Equation,
    Index,
    Load,
    Nest,
    Random,
    Reduce,
    Store,
    axes_of_values,
    defined,
    operands,
)
from lamina.schedule.gpu_facts import guess
from lamina.schedule.gpu_fast_axis import fast_of
from lamina.schedule.gpu_target import GpuTarget
from lamina.schedule.simplify import rename

__all__ = ["ACROSS", "COLUMN_POINTS", "HALVES", "MANY", "SHORT", "WIDEST", "Cutting", "axes_of", "gathers"]

WIDEST = 8192
"""Columns of which a program keeps several sums in registers."""
SHORT = 64
"""Elements of contiguous runs below which a reduction of them reads narrow pieces."""
ACROSS = 64
"""Columns that a program reduces side by side."""
COLUMN_POINTS = 64
"""Points of a column that are worth a program."""
HALVES = ("float16", "bfloat16")
"""Types in which parts would be rounded on their way."""
_SECTOR = 32
"""Bytes that memory reads at least."""
MANY = 1 << 20
"""Points from which narrow pieces cost more than two launches."""


class Cutting:
    """One nest. New buffers are added to ``buffers``, reasons to ``decisions``."""

    def __init__(self, nest: Nest, buffers: dict[str, Buffer], target: GpuTarget, decisions: list[Decision]) -> None:
        self.nest, self.buffers, self.target, self.decisions = nest, buffers, target, decisions
        self.body = nest.body
        self.axes = {a.name: a for a in nest.axes}
        self.values = axes_of_values(nest)
        self.made = {n: p for p, e in enumerate(self.body) for n in defined(e)}
        self.reduces = [p for p, e in enumerate(self.body) if isinstance(e, Reduce)]
        self.sets = list(dict.fromkeys(frozenset(e.axes) for e in self.body if isinstance(e, Reduce)))
        self.device = next((buffers[e.buffer].device for e in self.body if isinstance(e, Load | Store)), "cuda")

    def reduce(self, position: int) -> Reduce:
        eqn = self.body[position]
        assert isinstance(eqn, Reduce)
        return eqn

    def size(self, names: Iterable[str]) -> int:
        return guess(prod(self.axes[a].extent for a in names))

    @cached_property
    def offsets(self) -> list[tuple[Load | Store, Expr]]:
        """Accesses with their distance from the buffer's first element."""
        found: list[tuple[Load | Store, Expr]] = []
        for eqn in self.body:
            if isinstance(eqn, Load | Store):
                strides = self.buffers[eqn.buffer].strides
                offset = sum((i * s for i, s in zip(eqn.index, strides, strict=True)), as_expr(0))
                found.append((eqn, offset))
        return found

    def fast(self) -> str | None:
        """The axis along which most bytes are contiguous."""
        runs = [
            (offset.axes(), name, self.size(offset.axes()))
            for _, offset in self.offsets
            for name in offset.axes()
            if offset.coefficient(self.axes[name]) == 1
        ]
        return fast_of(self.nest, runs)

    def inner(self) -> frozenset[str]:
        """Of several sets of reduced axes the one whose results the others need, else the one with the fast axis."""
        for p in self.reduces:
            after = self.depending({p})
            if any(q in after and self.reduce(q).axes != self.reduce(p).axes for q in self.reduces):
                return frozenset(self.reduce(p).axes)
        fast = self.fast()
        return next((s for s in self.sets if fast in s), self.sets[0])

    def volume(self, inner: frozenset[str]) -> int:
        """Points a program would hold for ``inner`` at once; too many where a size is unknown."""
        if not all(self.axes[a].extent.is_int for a in inner):
            return WIDEST + 1
        return self.size(inner)

    def depending(self, positions: set[int]) -> set[int]:
        """Equations that use a result of these."""
        names = {n for p in positions for n in defined(self.body[p])}
        found: set[int] = set()
        for p, eqn in enumerate(self.body):
            if any(n in names for n in operands(eqn)):
                found.add(p)
                names.update(defined(eqn))
        return found

    def first(self) -> list[int]:
        """Reductions that depend on no other."""
        later = self.depending(set(self.reduces))
        return [p for p in self.reduces if p not in later]

    def goals(self) -> list[int]:
        return [p for p, e in enumerate(self.body) if isinstance(e, Store | Check)]

    @cached_property
    def loads(self) -> list[tuple[Load, Expr]]:
        """The loads, with their distance from the buffer's first element."""
        return [(e, o) for e, o in self.offsets if isinstance(e, Load)]

    @cached_property
    def large(self) -> list[Expr]:
        """Distances of the large operands that are read."""
        whole = self.size(self.axes)
        return [o for _, o in self.loads if self.size(o.axes()) * 8 >= whole]

    def contiguous(self, names: Iterable[str]) -> str | None:
        """One of these axes along which some large operand is contiguous, beside the fast axis perhaps."""
        names = list(names)
        wide = [a for a in names if self.size(self.continued(a, names)) >= ACROSS // 2]
        return next((a for o in self.large for a in wide if o.coefficient(self.axes[a]) == 1), None)

    def continued(self, fast: str, names: Iterable[str]) -> list[str]:
        """An axis with those of ``names`` that continue it in the large operands which are contiguous along it."""
        run = [fast]
        offsets = [o for o in self.large if o.coefficient(self.axes[fast]) == 1]
        while self.size(run) < SHORT and offsets:
            step = prod(self.axes[a].extent for a in run)
            after = [a for a in names if a not in run and all(o.coefficient(self.axes[a]) == step for o in offsets)]
            if len(after) != 1:
                break
            run.append(after[0])
        return run

    def short(self, axis: str) -> bool:
        """Whether an axis is so short that reading along it alone is reading narrow pieces."""
        return self.axes[axis].extent.is_int and self.axes[axis].extent.const < SHORT

    def stored(self) -> list[str]:
        """The buffer of each store."""
        return [e.buffer for e in self.body if isinstance(e, Store)]

    def moved(self, body: list[Equation]) -> int:
        """Bytes that the equations load: whole sectors of memory at places that are loaded themselves."""
        loads = {(e.buffer, e.index): e for e in body if isinstance(e, Load)}
        return sum(self.size(self.values.get(e.out, axes_of(e))) * self.fetched(e) for e in loads.values())

    def fetched(self, eqn: Load) -> int:
        """Bytes that memory moves for an element."""
        size = DTYPES[eqn.dtype].size
        along = any(e.coefficient(self.axes[a]) == 1 for e in eqn.index[-1:] for a in e.axes() if a in self.axes)
        return size if along or not gathers(eqn) else max(size, _SECTOR)

    def dtype(self, name: str) -> str:
        if name not in self.made:
            eqn = self.body[self.made[name.removesuffix("_in")]]
        else:
            eqn = self.body[self.made[name]]
        assert not isinstance(eqn, Store | Check)
        return eqn.dtype

    def slice(self, goals: Iterable[int], known: Mapping[str, object]) -> list[Equation]:
        """Equations that the goals need beyond known values, in order."""
        pending, found = list(goals), set(goals)
        while pending:
            for name in operands(self.body[pending.pop()]):
                if name not in known and self.made[name] not in found:
                    found.add(self.made[name])
                    pending.append(self.made[name])
        return [self.body[p] for p in sorted(found)]

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
        return Nest(f"{self.nest.name}_{suffix}", tuple(a for a in axes if a.name in used), tuple(body))

    def temporary(self, name: str, dtype: str, axes: Iterable[Axis]) -> Buffer:
        """A new contiguous buffer over these axes."""
        shape = tuple(a.extent for a in axes)
        strides: list[Expr] = []
        step = as_expr(1)
        for n in reversed(shape):
            strides.insert(0, step)
            step = step * n
        buffer = Buffer(f"{self.nest.name}_{name}", dtype, shape, tuple(strides), self.device)
        self.buffers[buffer.name] = buffer
        return buffer

    def saved(self, names: Iterable[str]) -> tuple[list[Equation], dict[str, Load]]:
        """Stores of values into new buffers, and the loads that read them back."""
        stores: list[Equation] = []
        loads: dict[str, Load] = {}
        for name in names:
            eqn = self.body[self.made[name]]
            assert not isinstance(eqn, Store | Check)
            axes = [a for a in self.nest.axes if a.name in self.values[name]]
            buffer = self.temporary(name, eqn.dtype, axes)
            index = tuple(as_expr(a) for a in axes)
            stores.append(Store(buffer.name, index, name, origin=eqn.origin))
            loads[name] = Load(name, buffer.name, index, eqn.dtype, origin=eqn.origin)
        return stores, loads

    def needed(self, body: list[Equation], names: Iterable[str]) -> list[str]:
        """Those of ``names`` that the equations read."""
        read = {n for e in body for n in operands(e)}
        return [n for n in names if n in read]

    def backwards(self, nest: Nest) -> Nest:
        """The nest from the last to the first point of its slowest axis: it begins with what the reductions before it
        read last, and the second-level cache still holds.
        """
        if any(isinstance(e, Reduce) for e in nest.body) or self.moved(list(nest.body)) < self.target.l2_bytes:
            return nest
        steps = dict.fromkeys((a.name for a in nest.axes), 0)
        for offset in self.large:
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

    def decide(self, kind: str, reason: str) -> None:
        self.decisions.append(Decision("cut", (self.nest.name, kind), True, reason))


def axes_of(eqn: Equation) -> set[str]:
    """Axes that an access goes along; none for other equations."""
    return {a for e in eqn.index for a in e.axes()} if isinstance(eqn, Load | Store) else set()


def gathers(eqn: Equation) -> bool:
    """Whether an equation loads at places that are loaded themselves."""
    return isinstance(eqn, Load) and any(isinstance(a, Loaded) for e in eqn.index for a in e.atoms())
