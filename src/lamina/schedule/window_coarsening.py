"""Window coarsening: one point does the work of neighbours whose windows overlap, and loads each element once.

The gradient of a pooling with windows of three, two apart, is the sum over the windows that hold an element: two along
each dimension or one, by whether its place is even. Where a point does the work of both places, their remainders are
numbers, predicates on them are folded, and each window is read once for four elements instead of nine times.

Windows that slide by one element overlap: of seven along a row, four neighbours read ten elements instead of 28.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lamina.ir.access import contiguous_axes
from lamina.ir.index import Axis, Div, Expr, Mod, as_expr
from lamina.ir.loops import Buffer, Load, Nest, Reduce, Scan, Store
from lamina.schedule.coarsening import coarsen
from lamina.schedule.fold_predicates import fold_predicates
from lamina.schedule.simplify import simplify

__all__ = ["coarsen_windows", "sliding_axes", "undivided"]

_MOST = 4
"""Neighbours that share a point at most."""
_SLIDING = (4, 7, 5, 3, 2)
"""Numbers of neighbours whose windows overlap that share a point, the best first."""
_OVERLAP = 3
"""Places side by side that windows read at least."""
_LEAST = 2
"""Loads at places divided by the step that are worth it: one alone is no more than the memory it reads."""
_MANY = 2
"""Loads at divided places for each contiguous access that is given up."""
_SHORTEST = 8
"""Quotients of an axis that are worth a vector loop."""
_EQUATIONS, _MOST_EQUATIONS = 400, 2400
"""The most equations of a nest, and of one whose windows overlap."""


def coarsen_windows(nest: Nest, buffers: Mapping[str, Buffer]) -> Nest:
    """The nest with neighbours of one point along axes where they read the same elements; else the same object.

    Where memory is contiguous along an axis its accesses become narrow, which those at divided places are anyway: such
    are to be many.
    """
    found, parts = nest, 1
    for axis in nest.axes:
        step = _step(found, axis)
        if step < 2 or parts * step > _MOST or not _narrow_anyway(found, axis, buffers):
            continue
        made = _coarsened(found, axis, step, _EQUATIONS, (3, 4))
        if made is not None:
            found, parts = made, parts * step
    if parts > 1:
        return found
    for axis in sliding_axes(nest, buffers):
        for step in _SLIDING:
            if axis.extent.const % step == 0:
                made = _coarsened(nest, axis, step, _MOST_EQUATIONS, (3, 5))
                return nest if made is None else made
    return nest


def undivided(nest: Nest, buffers: Mapping[str, Buffer]) -> Nest:
    """For a CPU: the nest with a point for each quotient of a contiguous axis that places are divided in.

    The gradient of every second element, an image whose pixels are repeated: lane by lane, each would look which place
    it is. Now remainders are numbers, and vectors read what the quotients are the places of.
    """
    if any(isinstance(e, Scan) for e in nest.body):
        return nest
    reduced = {name for e in nest.body if isinstance(e, Reduce) for name in e.axes}
    for axis in nest.axes:
        step = _step(nest, axis, 1) if axis.name not in reduced else 0
        if step < 2 or axis.extent.const < _SHORTEST * step or not _stored_along(nest, axis, buffers):
            continue
        coarsened = coarsen(nest, axis, step, near=True)
        if coarsened is not None and len(coarsened.body) <= _EQUATIONS:
            return replace(coarsened, body=simplify(fold_predicates(coarsened.body), "exact"))
    return nest


def _stored_along(nest: Nest, axis: Axis, buffers: Mapping[str, Buffer]) -> bool:
    """Whether every store goes to contiguous memory along the axis."""
    stores = [e for e in nest.body if isinstance(e, Store)]
    places = [sum((i * s for i, s in zip(e.index, buffers[e.buffer].strides, strict=True)), as_expr(0)) for e in stores]
    return bool(stores) and all(place.coefficient(axis) == 1 for place in places)


def sliding_axes(nest: Nest, buffers: Mapping[str, Buffer]) -> list[Axis]:
    """Axes, the last first, along which windows overlap and memory is not contiguous."""
    found = [axis for axis in reversed(nest.axes) if _overlap(nest, axis) >= _OVERLAP]
    contiguous = contiguous_axes(nest, buffers) if found else set()
    return [axis for axis in found if axis.name not in contiguous]


def _coarsened(nest: Nest, axis: Axis, step: int, most: int, share: tuple[int, int]) -> Nest | None:
    """The nest with ``step`` neighbours along the axis in one point, if they read that share of what each alone would.

    And if it has no more than ``most`` equations.
    """
    coarsened = coarsen(nest, axis, step, near=True)
    if coarsened is None:
        return None
    made = replace(coarsened, body=simplify(fold_predicates(coarsened.body, zeros=True), "exact"))
    before, after = _reads(nest, axis.name), _reads(made, axis.name)
    few = after * share[1] <= step * before * share[0]
    return made if few and len(made.body) <= most else None


def _overlap(nest: Nest, axis: Axis) -> int:
    """The most places that lie side by side along the axis and that each point reads, of one buffer."""
    if not axis.extent.is_int:
        return 0
    shifts: dict[tuple[str, tuple[Expr, ...]], set[int]] = {}
    for eqn in nest.body:
        if isinstance(eqn, Load):
            along = [k for k, e in enumerate(eqn.index) if axis.name in e.axes()]
            if len(along) == 1 and eqn.index[along[0]].coefficient(axis) in (1, 2):
                place = eqn.index[along[0]]
                rest = (*eqn.index[: along[0]], place - place.const, *eqn.index[along[0] + 1 :])
                shifts.setdefault((eqn.buffer, rest), set()).add(place.const)
    return max((len(found) for found in shifts.values() if max(found) - min(found) < 2 * len(found)), default=0)


def _step(nest: Nest, axis: Axis, least: int = _LEAST) -> int:
    """The number by which ``least`` loads divide their place along the axis, if its length is a multiple; else 0."""
    if not axis.extent.is_int:
        return 0
    steps: dict[int, int] = {}
    for eqn in nest.body:
        if isinstance(eqn, Load):
            for step in {_divisor(a, axis) for e in eqn.index if e.terms for a in e.atoms()} - {0}:
                steps[step] = steps.get(step, 0) + 1
    best = max(steps, key=lambda s: steps[s], default=0)
    return best if best and steps[best] >= least and axis.extent.const % best == 0 else 0


def _divisor(atom: object, axis: Axis) -> int:
    if not isinstance(atom, Div | Mod) or not atom.den.is_int or atom.num.coefficient(axis) != 1:
        return 0
    return atom.den.const if atom.den.const <= _MOST else 0


def _narrow_anyway(nest: Nest, axis: Axis, buffers: Mapping[str, Buffer]) -> bool:
    """Whether few accesses are contiguous along the axis, beside loads at places that it is divided in."""
    contiguous = divided = 0
    for eqn in nest.body:
        if isinstance(eqn, Load | Store):
            strides = buffers[eqn.buffer].strides
            factor = sum((i * s for i, s in zip(eqn.index, strides, strict=True)), as_expr(0)).coefficient(axis)
            contiguous += factor == 1
            divided += factor is None
    return divided >= _MANY * contiguous


def _reads(nest: Nest, axis: str) -> int:
    """Loads at places that vary along the axis."""
    return sum(isinstance(e, Load) and any(axis in i.axes() for i in e.index) for e in nest.body)
