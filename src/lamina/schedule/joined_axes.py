"""Reduced axes that every access steps through as if they were one: images and lines of a batch, rows of two.

As one axis they can be cut into any number of equal parts, where a single one of them has too few points, or a prime
number of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations

from lamina.ir.index import Atom, Axis, Expr, as_expr
from lamina.ir.loops import Buffer, Equation, Index, Load, Nest, Random, Reduce, Scan, Store
from lamina.schedule.simplify import rename

__all__ = ["with_joined_axes"]


def with_joined_axes(nest: Nest, buffers: Mapping[str, Buffer]) -> Nest:
    """The nest with such axes joined; the same object where there are none. Axes of unknown size stay apart."""
    if any(isinstance(e, Scan) or (isinstance(e, Reduce) and e.op.startswith("arg")) for e in nest.body):
        return nest
    while (pair := _pair(nest, buffers)) is not None:
        nest = _joined(nest, *pair)
    return nest


def _pair(nest: Nest, buffers: Mapping[str, Buffer]) -> tuple[Axis, Axis] | None:
    """A reduced axis and the one that it continues."""
    sets = [frozenset(e.axes) for e in nest.body if isinstance(e, Reduce)]
    reduced = [a for a in nest.axes if a.extent.is_int and any(a.name in s for s in sets)]
    places = _places(nest, buffers)
    for outer, inner in permutations(reduced, 2):
        if all((outer.name in s) == (inner.name in s) for s in sets) and _continues(outer, inner, places):
            return outer, inner
    return None


def _places(nest: Nest, buffers: Mapping[str, Buffer]) -> list[Expr]:
    """Distances of accesses from their buffers' first elements, and all else that is computed from axes."""
    found: list[Expr] = []
    for eqn in nest.body:
        if isinstance(eqn, Load | Store):
            strides = buffers[eqn.buffer].strides
            found.append(sum((i * s for i, s in zip(eqn.index, strides, strict=True)), as_expr(0)))
        elif isinstance(eqn, Index):
            found.append(eqn.expr)
        elif isinstance(eqn, Random):
            found.append(eqn.index)
    return found


def _continues(outer: Axis, inner: Axis, places: list[Expr]) -> bool:
    steps = [(place.coefficient(outer), place.coefficient(inner)) for place in places]
    return all(
        slow is not None and fast is not None and (slow - fast * inner.extent) == 0  # both 0 where neither matters
        for slow, fast in steps
    )


def _joined(nest: Nest, outer: Axis, inner: Axis) -> Nest:
    axis = Axis(f"{outer.name}_{inner.name}", outer.extent * inner.extent)
    places: dict[Atom, Expr] = {outer: as_expr(axis) // inner.extent, inner: as_expr(axis) % inner.extent}

    def changed(eqn: Equation) -> Equation:
        eqn = rename(eqn, {}, places)
        if isinstance(eqn, Reduce) and outer.name in eqn.axes:
            axes = tuple(axis.name if a == outer.name else a for a in eqn.axes if a != inner.name)
            return replace(eqn, axes=axes)
        return eqn

    axes = tuple(axis if a == outer else a for a in nest.axes if a != inner)
    return replace(nest, axes=axes, body=tuple(changed(e) for e in nest.body))
