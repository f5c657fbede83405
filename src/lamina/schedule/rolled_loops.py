"""Rolled loops: a nest's loop over an axis begins at another point and goes around its end.

What a roll reads (windows that are shifted before attention, rows beside their predecessors) lies at remainders of the
producer's places. The producer's loop, or the loop of another reader, takes that order, so that they fuse to one
kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from lamina.ir.access import contiguous_axes
from lamina.ir.index import Atom, Axis, Expr, Mod, as_expr
from lamina.ir.loops import Buffer, Load, Nest, Random, Reduce, Scan, Store
from lamina.schedule.align import bare_axis, rolled
from lamina.schedule.buffer_facts import estimate
from lamina.schedule.simplify import rename

__all__ = ["rolled_to_match"]


@dataclass(frozen=True, slots=True)
class _Roll:
    """``axis`` begins at ``shift``; the other nest goes over the same points by its axes ``around``."""

    axis: Axis
    shift: Expr
    around: frozenset[str]


def rolled_to_match(nest: Nest, other: Nest, buffers: Mapping[str, Buffer]) -> Iterator[Nest]:
    """The nest with loops that go around their ends as ``other`` does at elements that one of the two writes and the
    other reads. None where no loop does, or where one does along which memory is contiguous: accesses that begin
    anywhere are not wide.
    """
    rolls = _rolls(nest, other)
    if not rolls:
        return
    along, around = _runs(nest, buffers), _runs(other, buffers)
    if not any(r.axis.name in along or r.around & around for r in rolls):
        made = _rolled(nest, rolls)
        if made is not None:
            yield made


def _rolls(nest: Nest, other: Nest) -> list[_Roll]:
    found: dict[Axis, _Roll] = {}
    for plain, round_ in (*_places(nest, other), *((b, a) for a, b in _places(other, nest))):
        axis, split = bare_axis(plain), rolled(round_)
        if axis is not None and split is not None and split.extent == axis.extent:
            found.setdefault(axis, _Roll(axis, split.shift, split.places.axes()))
    return list(found.values())


def _places(writer: Nest, reader: Nest) -> Iterator[tuple[Expr, Expr]]:
    """What each dimension of a buffer is written and read at."""
    stores = {e.buffer: e.index for e in writer.body if isinstance(e, Store)}
    for eqn in reader.body:
        if isinstance(eqn, Load) and eqn.buffer in stores:
            yield from zip(stores[eqn.buffer], eqn.index, strict=True)


def _runs(nest: Nest, buffers: Mapping[str, Buffer]) -> set[str]:
    """The axes along which the memory of the largest operands is contiguous."""
    extents = {a.name: estimate(a.extent) for a in nest.axes}
    accesses = [
        (prod(extents[a] for a in frozenset[str]().union(*(i.axes() for i in e.index))), e)
        for e in nest.body
        if isinstance(e, Load | Store)
    ]
    most = max((points for points, _ in accesses), default=0)
    large = tuple(e for points, e in accesses if points == most)
    return contiguous_axes(Nest(nest.name, nest.axes, large), buffers)


def _rolled(nest: Nest, rolls: list[_Roll]) -> Nest | None:
    """The nest with each axis beginning at its shift; ``None`` where it is reduced or scanned in its order, or numbers
    are drawn.
    """
    names = {roll.axis.name for roll in rolls}
    for eqn in nest.body:
        ordered = {*eqn.axes} if isinstance(eqn, Reduce) else {eqn.axis} if isinstance(eqn, Scan) else set[str]()
        if isinstance(eqn, Random) or names & ordered:
            return None
    places: dict[Atom, Expr | int] = {r.axis: (as_expr(r.axis) + r.shift) % r.axis.extent for r in rolls}
    if not all(any(isinstance(atom, Mod) for atom in as_expr(p).atoms()) for p in places.values()):
        return None
    return Nest(nest.name, nest.axes, tuple(rename(eqn, {}, places) for eqn in nest.body))
