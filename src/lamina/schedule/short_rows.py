"""Kernels for CPUs whose innermost axis does not fill its vectors: it is joined with those around it to one long axis.

Rows of five with a number added to each column, windows of three by three: what is written lies in memory without a
gap, but some operand does not, so that the axes could not be collapsed, and each row has vectors of its own. Along the
joined axis the places of such an operand go on in the same way after every row; code generation has them in a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from lamina.base.target import Target
from lamina.ir.index import Atom, Axis, Expr, Loaded, as_expr, prod
from lamina.ir.loops import Check, Load, Nest, Random, Reduce, Scan, Store, axes_of_values
from lamina.ir.periodic import periodic
from lamina.schedule.cost import expected_us
from lamina.schedule.flatten import Flat
from lamina.schedule.simplify import rename, simplify

__all__ = ["joined_rows"]

_EMPTY = 1.2
"""How many times the points of a row the lanes of its vectors are at least."""
_LEAST = 32
"""Points of the joined axis at least."""
_SURE = 1.2
"""How many times as long the loops must be expected to take as they are."""


def joined_rows(flat: Flat, target: Target) -> Flat:
    """The nests, each with its innermost axes joined where that is expected to fill vectors and save time."""
    dtypes = {f"b{k}": dtype for k, dtype in enumerate(flat.dtypes)}
    nests = tuple(_joined_rows(nest, dtypes, target) for nest in flat.nests)
    return flat if nests == flat.nests else replace(flat, nests=nests)


def _joined_rows(nest: Nest, dtypes: Mapping[str, str], target: Target) -> Nest:
    lanes = target.vector_bytes // 4
    if not lanes or len(nest.axes) < 2 or not all(a.extent.is_int for a in nest.axes):
        return nest
    row = nest.axes[-1].extent.const
    if -(-row // lanes) * lanes < _EMPTY * row or any(isinstance(e, Random | Check) for e in nest.body):
        return nest
    found = {made: expected_us(made, dtypes, target) for made in _joinings(nest)}
    best = min(found, key=lambda made: found[made], default=nest)
    return best if found and expected_us(nest, dtypes, target) >= _SURE * found[best] else nest


def _joinings(nest: Nest) -> Iterator[Nest]:
    """The nest with two and more of its innermost axes as one, along which all stores are without gaps."""
    stuck = {a for e in nest.body if isinstance(e, Reduce) for a in e.axes}
    stuck |= {e.axis for e in nest.body if isinstance(e, Scan)}
    for count in range(2, len(nest.axes) + 1):
        axes = nest.axes[-count:]
        if not stuck.isdisjoint(a.name for a in axes):
            return
        extent = prod(a.extent for a in axes)
        if extent.const < _LEAST:
            continue
        made = _joined(nest, axes, Axis(axes[-1].name, extent))
        if not all(e.index[0].coefficient(made.axes[-1]) == 1 for e in made.body if isinstance(e, Store)):
            return
        if all(_is_known(e, made) for e in made.body if isinstance(e, Load)):
            yield made


def _joined(nest: Nest, axes: tuple[Axis, ...], joined: Axis) -> Nest:
    """``axes``, the innermost ones, as the quotients and remainders of one."""
    mapping: dict[Atom, Expr | int] = {}
    rest = as_expr(joined)
    for axis in reversed(axes[1:]):
        mapping[axis] = rest % axis.extent
        rest = rest // axis.extent
    mapping[axes[0]] = rest
    body = simplify([rename(eqn, {}, mapping) for eqn in nest.body], "exact")
    return Nest(nest.name, (*nest.axes[: -len(axes)], joined), body)


def _is_known(eqn: Load, nest: Nest) -> bool:
    """Whether vectors along the innermost axis have their places in a straight line or a table."""
    axis, place = nest.axes[-1], eqn.index[0]
    if place.coefficient(axis) is not None:
        return True
    values = axes_of_values(nest)
    apart = any(isinstance(a, Loaded) and axis.name in values[a.name] for a in place.atoms())
    return not apart and periodic(place, axis) is not None
