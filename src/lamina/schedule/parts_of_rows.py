"""Rows whose elements are masked each by its place are written out, before nests are joined.

The gradient of ``x[..., 0]`` and ``x[..., 1]``: along the last axis each point asks which of them it is, and reads one
or the other. With a point for each row the masks are known, and the nest goes over the places that made what it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lamina.ir.index import Axis
from lamina.ir.loops import Load, Nest, Reduce, Scan, Store, axes_of_values
from lamina.schedule.fold_predicates import fold_predicates
from lamina.schedule.short_axes import EQUATIONS, LEAST, LONGEST
from lamina.schedule.simplify import simplify
from lamina.schedule.whole_rows import without_axis

__all__ = ["written_out"]


def written_out(nest: Nest) -> Nest:
    """The nest with a point for each row of up to four elements, where that decides most of its masks and no element
    is loaded more often; else the same object.
    """
    if any(isinstance(e, Scan) for e in nest.body) or len(nest.axes) < 2:
        return nest
    reduced = {name for e in nest.body if isinstance(e, Reduce) for name in e.axes}
    values = axes_of_values(nest)
    for axis in nest.axes:
        if axis.name in reduced or not axis.extent.is_int or not 2 <= axis.extent.const <= LONGEST:
            continue
        if not _is_masked_along(nest, axis, values) or not _has_rows(nest, axis):
            continue
        made = without_axis(replace(nest, axes=(*(a for a in nest.axes if a != axis), axis)), axis)
        if made is None:
            continue
        made = replace(made, body=tuple(simplify(fold_predicates(made.body), "exact")))
        if _loads(made) <= _loads(nest) and len(made.body) <= EQUATIONS:
            return made
    return nest


def _is_masked_along(nest: Nest, axis: Axis, values: Mapping[str, frozenset[str]]) -> bool:
    """Whether a load has a mask that varies along the axis only, and a store goes along it."""
    masked = any(isinstance(e, Load) and e.mask is not None and values[e.mask] == {axis.name} for e in nest.body)
    stores = [e for e in nest.body if isinstance(e, Store)]
    return masked and all(any(axis.name in i.axes() for i in e.index) and e.mask is None for e in stores)


def _has_rows(nest: Nest, axis: Axis) -> bool:
    """Whether another axis is long enough for vectors."""
    return any(a != axis and (not a.extent.is_int or a.extent.const >= LEAST) for a in nest.axes)


def _loads(nest: Nest) -> int:
    return sum(isinstance(e, Load) for e in nest.body)
