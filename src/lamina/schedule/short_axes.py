"""Short innermost axes of kernels for CPUs are unrolled: each point of the loop around them does all their work.

Two, three or four elements fill no vector. The parts of a stack, the corners of a box, the pixels that are shuffled out
of channels: unrolled, the loop outside of them runs in vectors, whose elements take turns in memory.
"""

from __future__ import annotations

from dataclasses import replace

from lamina.ir.index import Axis
from lamina.ir.loops import Compute, Equation, Nest, Reduce, Scan, Store
from lamina.schedule.flatten import Flat, alone
from lamina.schedule.fold import fold
from lamina.schedule.simplify import rename, simplify

__all__ = ["unrolled"]

_LONGEST = 4
"""Points of an axis that is unrolled at most: vectors whose elements take as many turns are stored whole."""
_LEAST = 8
"""Points of the axis around it at least."""
_EQUATIONS = 160


def unrolled(flat: Flat) -> Flat:
    """The nests, each without its innermost axis where that is short and memory goes on along the one around it."""
    nests = tuple(_unrolled(nest) for nest in flat.nests)
    return flat if nests == flat.nests else replace(flat, nests=nests)


def _unrolled(nest: Nest) -> Nest:
    if len(nest.axes) < 2 or not nest.axes[-1].extent.is_int:
        return nest
    axis = nest.axes[-1]
    count = axis.extent.const
    if not 2 <= count <= _LONGEST or len(nest.body) * count > _EQUATIONS:
        return nest
    if any(isinstance(e, Scan) for e in nest.body) or not any(_goes_on(nest, outer, axis) for outer in nest.axes[:-1]):
        return nest
    made = fold(nest, axis, count, near=True)
    if made is None:
        return nest
    gone = next(a for a in made.axes if a.name == axis.name)
    body = [one for eqn in made.body for one in _without(rename(eqn, {}, {gone: 0}), axis.name)]
    return Nest(nest.name, tuple(a for a in made.axes if a != gone), tuple(simplify(body, "exact")))


def _goes_on(nest: Nest, outer: Axis, axis: Axis) -> bool:
    """Whether ``outer`` is long and each store goes on along it where ``axis`` ends, or does not vary along that."""
    if outer.extent.is_int and outer.extent.const < _LEAST:
        return False
    stores = [e for e in nest.body if isinstance(e, Store)]
    for eqn in stores:
        inner, around = eqn.index[0].coefficient(axis), eqn.index[0].coefficient(outer)
        reduced = inner is not None and inner == 0
        if inner is None or around is None or not (around == 1 if reduced else inner == 1 and around == axis.extent):
            return False
    return bool(stores)


def _without(eqn: Equation, axis: str) -> tuple[Equation, ...]:
    """An equation of a nest of which ``axis`` has one point, for the nest without it."""
    if not isinstance(eqn, Reduce) or axis not in eqn.axes:
        return (eqn,)
    left = tuple(a for a in eqn.axes if a != axis)
    if left:
        return (replace(eqn, axes=left),)
    if eqn.op == "sum":
        return alone(eqn.outs[0], eqn.value, eqn.dtype, eqn.origin)
    return (Compute(eqn.outs[0], "identity", (eqn.value,), eqn.dtype, eqn.origin),)
