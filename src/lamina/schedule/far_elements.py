"""Vector axes and elements whose neighbours along them do not lie near them in memory: where they are the only ones
there are, for nests that compute much, and where they are to be avoided.

A row of sixteen elements that one point sorts takes hundreds of instructions: vectors of points save most of them, if
each lane is loaded and stored by itself.
"""

from __future__ import annotations

from math import prod

from lamina.base.target import Target
from lamina.ir.index import Axis, Loaded
from lamina.ir.loops import Compute, Equation, Load, Nest, Reduce, Scan, Store
from lamina.ir.ops import OPS
from lamina.ir.plan import furthest
from lamina.schedule.lanes import LANES
from lamina.schedule.nest_parts import FEW

__all__ = ["far_and_again", "far_axis"]

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


def far_and_again(nest: Nest, target: Target) -> frozenset[str]:
    """Axes along which elements lie apart that are read again and again, for each point of other axes.

    What memory holds is all that tells vector axes apart where each element is read a few times.
    """
    sizes = {a.name: a.extent.const for a in nest.axes if a.extent.is_int}
    if len(sizes) < len(nest.axes):
        return frozenset()
    found: set[str] = set()
    for eqn in nest.body:
        if not isinstance(eqn, Load) or any(isinstance(a, Loaded) for a in eqn.index[0].atoms()):
            continue
        again = prod(size for name, size in sizes.items() if name not in eqn.index[0].axes())
        for axis in nest.axes if again >= FEW else ():
            step = eqn.index[0].coefficient(axis)
            if step is not None and step.is_int and abs(step.const) > furthest(target.vector_bytes):
                found.add(axis.name)
    return frozenset(found)


def _is_added(eqn: Equation) -> bool:
    return isinstance(eqn, Store) and (eqn.mode != "set" or eqn.mask is not None)


def _is_regular(axis: Axis, accesses: list[Load | Store]) -> bool:
    if axis.extent.is_int and axis.extent.const < LANES:
        return False
    steps = [e.index[0].coefficient(axis) for e in accesses]
    stored = [s for e, s in zip(accesses, steps, strict=True) if isinstance(e, Store)]
    return all(s is not None and s.is_int and s.const >= 0 for s in steps) and all(s != 0 for s in stored)
