"""Column sums of a few columns, for CPUs: some rows side by side fill the vectors, their sums are added up afterwards.

The gradient of a number for each of five columns is the sum over all rows. A row of five is a third of a vector, and so
is all that is computed on the way. With twelve rows side by side there are sixty columns, each with a sum of its own; a
nest of sixty points makes five of them.

So it is where the kept axes are not the fastest ones, and lie between others in memory: of images that a pixel shuffle
made of channels, a number for each place in a cell. No loop along memory either keeps or reduces a vector's elements.
What lies inside of the outermost kept axis, reduced axes too, are then the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lamina.base.decision import Decision
from lamina.base.dtypes import DTYPES
from lamina.ir.access import writes
from lamina.ir.index import Atom, Axis, Expr, as_expr, prod
from lamina.ir.loops import (
    Buffer,
    Compute,
    Constant,
    Equation,
    Index,
    Load,
    Nest,
    Random,
    Reduce,
    Step,
    Store,
    axes_of_values,
    defined,
    operands,
)
from lamina.ir.ops import JOINS
from lamina.schedule import reasons
from lamina.schedule.lanes import LANES
from lamina.schedule.nest_parts import LEAST_POINTS
from lamina.schedule.simplify import rename, simplify

__all__ = ["short_columns"]

_MOST = 128
"""Columns that are summed side by side at most."""
_GAIN = 1.5
"""How many times as many lanes are to be of use."""


def short_columns(
    steps: Sequence[Step], buffers: Mapping[str, Buffer], numerics: str
) -> tuple[list[Step], tuple[Buffer, ...], tuple[Decision, ...]]:
    """``steps`` with such sums in two nests, the buffers between them, and what was decided.

    Sums are added up in another order, which is not done where eager's is kept.
    """
    result: list[Step] = []
    made: list[Buffer] = []
    decisions: list[Decision] = []
    for step in steps:
        parts = _parts(step, buffers, made) if isinstance(step, Nest) and numerics != "eager" else None
        result += [step] if parts is None else parts
        if parts is not None:
            decisions.append(Decision("columns", (step.name,), True, reasons.ROWS_SIDE_BY_SIDE()))
    return result, tuple(made), tuple(decisions)


def _parts(nest: Nest, buffers: Mapping[str, Buffer], made: list[Buffer]) -> list[Nest] | None:
    """The nest that makes sums of columns side by side, and the one that adds them up; ``None`` where it stays one."""
    if any(not buffers[b].on_cpu for b in writes(nest)) or not all(a.extent.is_int for a in nest.axes):
        return None
    if not all(isinstance(e, Load | Store | Compute | Constant | Index | Reduce) for e in nest.body):
        return None
    sums = [e for e in nest.body if isinstance(e, Reduce)]
    if not sums or prod(a.extent for a in nest.axes).const < LEAST_POINTS:
        return None
    after = _after(nest, sums)
    order = _by_stride(nest, buffers)
    if after is None or order is None:
        return None
    reduced = set(sums[0].axes)
    kept = [a for a in order if a.name not in reduced]
    if order[len(order) - len(kept) :] != kept:
        between = _between(order, reduced)
        return None if between is None else _Split(nest, sums, after, between).nests(buffers, made)
    columns = int(prod(a.extent for a in kept).const)
    if not 1 < columns < LANES:
        return None
    beside, part = _beside(order[: len(order) - len(kept)], columns)
    total = columns * part * int(prod(a.extent for a in beside[1:]).const) if beside else columns
    if not beside or _used(total) < _GAIN * _used(columns):
        return None
    return _Split(nest, sums, after, [*beside, *kept], part).nests(buffers, made)


def _between(order: Sequence[Axis], reduced: set[str]) -> list[Axis] | None:
    """The axes from the outermost kept one on, where loops along memory are too short for vectors otherwise.

    They are 1024 columns at most, 4 KB of sums, with so many rows in each that adding up the columns hardly counts.
    """
    first = next((k for k, a in enumerate(order) if a.name not in reduced), len(order))
    inner, along = list(order[first:]), 1
    for axis in reversed(inner):
        if (axis.name in reduced) != (inner[-1].name in reduced):
            break
        along *= int(axis.extent.const)
    rows, columns = (int(prod(a.extent for a in axes).const) for axes in (order[:first], inner))
    if along >= LANES or not LANES <= columns <= LEAST_POINTS // LANES or rows < LANES:
        return None
    return inner if _used(columns) >= _GAIN * _used(along) else None


def _after(nest: Nest, sums: Sequence[Reduce]) -> list[Equation] | None:
    """What comes after the sums: computed and stored once for each column. ``None`` if sums are used otherwise."""
    values, axes = axes_of_values(nest), set(sums[0].axes)
    known = all(e.op in JOINS and set(e.axes) == axes and DTYPES[e.dtype].size >= 4 for e in sums)
    late = {name for e in sums for name in defined(e)}
    found: list[Equation] = []
    for eqn in nest.body:
        if late.isdisjoint(operands(eqn)):
            continue
        over = {a for name in operands(eqn) for a in values[name]}
        if isinstance(eqn, Reduce | Load) or over & axes:
            return None
        if isinstance(eqn, Store):
            if eqn.mode != "set" or any(a in axes for e in eqn.index for a in e.axes()):
                return None
        else:
            late.update(defined(eqn))
        found.append(eqn)
    early = {e.buffer for e in nest.body if isinstance(e, Store) and e not in found}
    read = {e.buffer for e in _needed(nest, found) if isinstance(e, Load)}
    written = {e.buffer for e in found if isinstance(e, Store)}
    return found if known and found and early.isdisjoint(read | written) else None


def _needed(nest: Nest, found: Sequence[Equation]) -> list[Equation]:
    """What ``found`` uses besides the sums, in order."""
    wanted = {name for e in found for name in operands(e)}
    result: list[Equation] = []
    for eqn in reversed(nest.body):
        if eqn not in found and not isinstance(eqn, Reduce | Store | Random) and not wanted.isdisjoint(defined(eqn)):
            result.insert(0, eqn)
            wanted.update(operands(eqn))
    return result


def _by_stride(nest: Nest, buffers: Mapping[str, Buffer]) -> list[Axis] | None:
    """The axes as they lie in memory, the fastest last, by an access that varies over all of them."""
    for eqn in nest.body:
        if isinstance(eqn, Load | Store):
            strides = buffers[eqn.buffer].strides
            place = sum((i * s for i, s in zip(eqn.index, strides, strict=True)), as_expr(0))
            steps = {a: place.coefficient(a) for a in nest.axes}
            found = {a: s.const for a, s in steps.items() if s is not None and s.is_int and s.const > 0}
            if len(found) == len(nest.axes) and 1 in found.values():
                return sorted(nest.axes, key=lambda a: -found[a])
    return None


def _beside(outer: Sequence[Axis], columns: int) -> tuple[list[Axis], int]:
    """The innermost of the reduced axes that become columns, and how many points of the first of them."""
    found: list[Axis] = []
    for axis in reversed(outer):
        extent, most = int(axis.extent.const), _MOST // columns
        found.insert(0, axis)
        if extent > most:
            parts = [n for n in range(1, most + 1) if extent % n == 0]
            return found, max(parts, key=lambda n: (round(_used(n * columns), 1), -n))
        columns *= extent
    return [], 1


def _used(columns: int) -> float:
    """The share of the lanes of vectors that columns side by side fill."""
    return columns / (-(-columns // LANES) * LANES)


class _Split:
    """A nest whose sums are made in two steps."""

    def __init__(
        self, nest: Nest, sums: list[Reduce], after: list[Equation], columns: list[Axis], part: int | None = None
    ) -> None:
        """``columns`` are those of the first nest, as they lie in memory; of the first of them ``part`` points."""
        self.nest, self.sums, self.after, self.columns = nest, sums, after, columns
        self.rest: dict[Axis, Axis] = {}
        """The loop that is left of the axis that is cut."""
        self.places: dict[Atom, Expr] = {}
        if part is not None:
            cut, *others = columns
            rest = Axis(f"{cut.name}_rest", as_expr(cut.extent.const // part))
            fast = [Axis(f"{cut.name}_part", as_expr(part))] if part > 1 else []
            self.columns, self.rest = [*fast, *others], {cut: rest}
            self.places = {cut: as_expr(rest) * part + sum(map(as_expr, fast), as_expr(0))}

    def nests(self, buffers: Mapping[str, Buffer], made: list[Buffer]) -> list[Nest]:
        """Both; the memory between them is added to ``made``."""
        axes = self.columns
        kept = {a.name for a in self.nest.axes} - set(self.sums[0].axes)
        inside = tuple(a.name for a in axes if a.name not in kept)
        shape = tuple(a.extent for a in axes)
        strides = tuple(prod(shape[k + 1 :]) for k in range(len(shape)))
        first: list[Equation] = []
        second: list[Equation] = list(_needed(self.nest, self.after))
        for eqn in self.nest.body:
            if eqn in self.after:
                continue
            eqn = rename(eqn, {}, self.places) if self.places else eqn
            if not isinstance(eqn, Reduce):
                first.append(eqn)
                continue
            over = tuple(a.name for a in self.outer())
            (out,) = eqn.outs
            label = f"{self.nest.name}_columns{len(made)}"
            made.append(Buffer(label, eqn.dtype, shape, strides))
            at = tuple(map(as_expr, axes))
            first += [replace(eqn, axes=over), Store(label, at, out, "set", None, eqn.origin)]
            second += [
                Load(f"{out}_beside", label, at, eqn.dtype, None, 0, eqn.origin),
                replace(eqn, value=f"{out}_beside", axes=inside),
            ]
        ends = Nest(f"{self.nest.name}_joined", tuple(axes), (*second, *self.after))
        return [Nest(self.nest.name, (*self.outer(), *axes), simplify(first, "fast")), ends]

    def outer(self) -> list[Axis]:
        """The axes that are still reduced in the first nest."""
        return [self.rest.get(a, a) for a in self.nest.axes if a not in self.columns]
