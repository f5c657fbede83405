"""Loop reversal: a nest's loop over an axis runs from its last point to its first.

A value that is read from its end (a flip before a running sum) is computed in that order, so that producer and reader
fuse to one kernel. A running sum between two flips, such as its gradient, runs from the end itself, so that memory is
read and written upwards.
"""

from __future__ import annotations

from dataclasses import replace

from lamina.ir.index import Atom, Axis, Expr, as_expr
from lamina.ir.loops import Equation, Load, Nest, Random, Reduce, Scan, Store
from lamina.schedule.align import bare_axis
from lamina.schedule.simplify import rename

__all__ = ["read_from_their_ends", "reversed_loops"]


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


def reversed_loops(nest: Nest, axes: list[Axis]) -> Nest | None:
    """The nest along ``axes`` from the last to the first point, scans in the other direction; ``None`` where it is
    reduced in that order.
    """
    names = {a.name for a in axes}
    if any(isinstance(e, Random) or (isinstance(e, Reduce) and names & set(e.axes)) for e in nest.body):
        return None
    reversal: dict[Atom, Expr | int] = {a: a.extent - 1 - as_expr(a) for a in axes}
    body: list[Equation] = []
    for eqn in nest.body:
        scans = isinstance(eqn, Scan) and eqn.axis in names
        body.append(
            replace(eqn, reverse=not eqn.reverse) if isinstance(eqn, Scan) and scans else rename(eqn, {}, reversal)
        )
    return Nest(nest.name, nest.axes, tuple(body))
