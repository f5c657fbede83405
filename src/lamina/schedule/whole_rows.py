"""Rows at a point: a nest without a short axis, each point of which does the work of all along it.

What sorts a row holds all of its elements at one point. What makes these elements, and what reads them, goes over them
along an axis of its own, and becomes one nest with it where it does all of a row at a point, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lamina.ir.index import Axis, Expr
from lamina.ir.loops import Compute, Equation, Nest, Reduce
from lamina.schedule.align import bare_axis
from lamina.schedule.coarsening import coarsen
from lamina.schedule.flatten import alone
from lamina.schedule.group import StepFacts
from lamina.schedule.simplify import rename, simplify

__all__ = ["row_axes", "without_axis"]


def without_axis(nest: Nest, axis: Axis) -> Nest | None:
    """The nest each of whose points does the work of all along ``axis``; ``None`` where that cannot be."""
    made = coarsen(nest, axis, axis.extent.const, near=True)
    if made is None:
        return None
    gone = next(a for a in made.axes if a.name == axis.name)
    body = [one for eqn in made.body for one in _without(rename(eqn, {}, {gone: 0}), axis.name)]
    return Nest(nest.name, tuple(a for a in made.axes if a != gone), tuple(simplify(body, "exact")))


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


def row_axes(nest: Nest, facts: StepFacts, other: StepFacts) -> Iterator[Axis]:
    """Axes along which the nest goes over rows of a buffer of which the other, of whose ``StepFacts`` it is asked,
    touches all elements at each point.
    """
    for axis in nest.axes:
        if axis.extent.is_int and axis.extent.const >= 2 and _is_row(axis, facts, other):
            yield axis


def _is_row(axis: Axis, facts: StepFacts, other: StepFacts) -> bool:
    for mine, theirs in ((facts.loads, other.stores), (facts.stores, other.loads)):
        for name in mine.keys() & theirs.keys():
            along = {k for index in mine[name] for k, e in enumerate(index) if bare_axis(e) == axis}
            touched = [_touched(theirs[name], k) for k in along]
            # An axis may have millions of points, and is asked about for each pair of nests.
            if any(len(t) == axis.extent.const and t == set(range(len(t))) for t in touched):
                return True
    return False


def _touched(places: list[tuple[Expr, ...]], dim: int) -> set[int]:
    """The numbers among the places along a dimension; of none if some are no numbers."""
    along = [index[dim] for index in places]
    return {e.const for e in along} if all(e.is_int for e in along) else set()
