"""Loops turned around: what a nest does from the first to the last point of an axis, from the last to the first.

What is read from its end (a flip before a running sum) is made in that order, so that the two can be one kernel.
"""

from __future__ import annotations

from lamina.ir.index import Atom, Axis, Expr, as_expr
from lamina.ir.loops import Load, Nest, Random, Reduce, Scan, Store
from lamina.schedule.align import bare_axis
from lamina.schedule.simplify import rename

__all__ = ["mirrored", "read_from_their_ends"]


def read_from_their_ends(writer: Nest, reader: Nest) -> list[Axis]:
    """The axes of ``writer`` along which ``reader`` goes through its results from the last to the first."""
    stores = {e.buffer: e.index for e in writer.body if isinstance(e, Store)}
    found: list[Axis] = []
    for eqn in reader.body:
        if not isinstance(eqn, Load) or eqn.buffer not in stores:
            continue
        for place, read in zip(stores[eqn.buffer], eqn.index, strict=True):
            axis = bare_axis(place)
            if axis is not None and axis not in found and _is_reverse(read, axis.extent):
                found.append(axis)
    return found


def _is_reverse(expr: Expr, extent: Expr) -> bool:
    axis = bare_axis(extent - 1 - expr)
    return axis is not None and axis.extent == extent


def mirrored(nest: Nest, axes: list[Axis]) -> Nest | None:
    """The nest along ``axes`` from the last to the first point; ``None`` where its order counts."""
    names = {a.name for a in axes}
    for eqn in nest.body:
        ordered = isinstance(eqn, Scan) or (isinstance(eqn, Reduce) and bool(names & set(eqn.axes)))
        if ordered or isinstance(eqn, Random):
            return None
    turned: dict[Atom, Expr | int] = {a: a.extent - 1 - as_expr(a) for a in axes}
    return Nest(nest.name, nest.axes, tuple(rename(eqn, {}, turned) for eqn in nest.body))
