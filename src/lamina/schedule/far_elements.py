"""The vector axis of nests that compute much with elements none of whose neighbours lie near them in memory.

A row of sixteen elements that one point sorts takes hundreds of instructions: vectors of points save most of them, if
each lane is loaded and stored by itself.
"""

from __future__ import annotations

from lamina.ir.index import Axis
from lamina.ir.loops import Compute, Equation, Load, Nest, Reduce, Scan, Store
from lamina.ir.ops import OPS
from lamina.schedule.target import LANES

__all__ = ["far_axis"]

_WORK = 6
"""Instructions of a point for each of its accesses from which on vectors pay: to put a lane in its place takes two."""


def far_axis(nest: Nest) -> str | None:
    """The innermost axis along which all elements lie at regular distances, if the nest is worth it."""
    accesses = [e for e in nest.body if isinstance(e, Load | Store)]
    if any(isinstance(e, Reduce | Scan) or _is_added(e) for e in nest.body):
        return None
    if sum(OPS[e.op].cost for e in nest.body if isinstance(e, Compute)) < _WORK * len(accesses):
        return None
    return next((axis.name for axis in reversed(nest.axes) if _is_regular(axis, accesses)), None)


def _is_added(eqn: Equation) -> bool:
    return isinstance(eqn, Store) and (eqn.mode != "set" or eqn.mask is not None)


def _is_regular(axis: Axis, accesses: list[Load | Store]) -> bool:
    if axis.extent.is_int and axis.extent.const < LANES:
        return False
    steps = [e.index[0].coefficient(axis) for e in accesses]
    stored = [s for e, s in zip(accesses, steps, strict=True) if isinstance(e, Store)]
    return all(s is not None and s.is_int and s.const >= 0 for s in steps) and all(s != 0 for s in stored)
