"""Windows: places that overlap with those of the next point, and how many of a buffer each point reads."""

from __future__ import annotations

import math
from collections import defaultdict

from lamina.ir.index import Axis, Expr
from lamina.ir.loops import Equation, Load, Nest, Reduce

__all__ = ["FEW_PLACES", "places", "slides"]

FEW_PLACES = 8
"""A point that reads a buffer at more places than these reads windows, which no reduction joins on a GPU."""


def places(nest: Nest) -> dict[str, int]:
    """At how many places each point reads a buffer: windows that are looped over are many."""
    looped = {n for e in nest.body if isinstance(e, Reduce) for n in e.axes}
    sliding: dict[str, int] = {}
    for axis in nest.axes:
        if axis.name in looped and axis.extent.is_int and any(slides(e, axis) for e in nest.body):
            sliding[axis.name] = axis.extent.const
    found: dict[str, int] = defaultdict(int)
    for eqn in nest.body:
        if isinstance(eqn, Load):
            over = {n for e in eqn.index for n in e.axes() & sliding.keys()}
            found[eqn.buffer] += math.prod(sliding[n] for n in over)
    return found


def slides(eqn: Equation, axis: Axis) -> bool:
    """Whether a load's places along the axis overlap with those of the next point along another axis."""
    if not isinstance(eqn, Load):
        return False
    for e in eqn.index:
        own = _step(e, axis)
        for other in e.atoms() if own else ():
            if isinstance(other, Axis) and other != axis and other.extent.is_int:
                step = _step(e, other)
                if 0 < step < own * axis.extent.const and own < step * other.extent.const:
                    return True
    return False


def _step(e: Expr, axis: Axis) -> int:
    """How far apart places are along the axis; 0 where that varies."""
    factor = e.coefficient(axis)
    return abs(factor.const) if factor is not None and factor.is_int else 0
