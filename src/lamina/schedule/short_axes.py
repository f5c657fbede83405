"""Short innermost axes are unrolled: each point of the loop around them does all their work.

On a CPU two, three or four elements fill no vector. The parts of a stack, the corners of a box, the pixels that are
shuffled out of channels: unrolled, the loop outside of them runs in vectors, whose elements take turns in memory.

On a GPU the elements of a row are neighbours in memory and belong to neighbouring threads. Only what many rows have in
common is read by each row alone: the coordinates of points of which the distances of all pairs are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lamina.base.target import Target
from lamina.ir.index import Axis, prod
from lamina.ir.loops import Load, Nest, Reduce, Scan, Store, axes_of_values
from lamina.ir.plan import furthest
from lamina.schedule.buffer_facts import estimate
from lamina.schedule.cost import expected_us
from lamina.schedule.flatten import Flat
from lamina.schedule.gpu_facts import ROWS_IN_COMMON
from lamina.schedule.whole_rows import without_axis

__all__ = ["EQUATIONS", "LEAST", "LONGEST", "unrolled", "unrolled_in_common"]

LONGEST = 4
"""Points of an axis that is unrolled at most without a question: vectors whose elements take as many turns are fast."""
LEAST = 8
"""Points of the axis around it at least."""
EQUATIONS = 160
"""Equations of an unrolled body at most: the text, and the time to compile it, grow with each. Not measured."""
_SURE = 1.2
"""How many times as long the loops must be expected to take as they are for a longer axis to be unrolled."""


def unrolled_in_common(flat: Flat) -> Flat:
    """The nests, each without its innermost axis where that is short, reduced, and all read along it is read by many
    rows (H200, the largest of three differences of 4096 x 4096 points in bfloat16: 57 us in rows).
    """
    nests = tuple(_unrolled_in_common(nest) for nest in flat.nests)
    return flat if nests == flat.nests else replace(flat, nests=nests)


def _unrolled_in_common(nest: Nest) -> Nest:
    if len(nest.axes) < 2 or any(isinstance(e, Scan) for e in nest.body):
        return nest
    *outer, axis = nest.axes
    count = axis.extent.const if axis.extent.is_int else 0
    if not 2 <= count <= 2 * LONGEST or len(nest.body) * count > EQUATIONS:
        return nest
    if not any(isinstance(e, Reduce) and axis.name in e.axes for e in nest.body):
        return nest
    rows, values = estimate(prod(a.extent for a in outer)), axes_of_values(nest)
    for eqn in nest.body:
        if isinstance(eqn, Store) and axis.name in eqn.index[0].axes():
            return nest
        if isinstance(eqn, Load) and axis.name in values[eqn.out]:
            own = estimate(prod(a.extent for a in outer if a.name in values[eqn.out]))
            if own * 2 * ROWS_IN_COMMON > rows:
                return nest
    return without_axis(nest, axis) or nest


def unrolled(flat: Flat, target: Target) -> Flat:
    """The nests, each without its innermost axis where that is short and memory goes on along the one around it.

    Longer ones than four, and such whose rows are parts of larger rows, are unrolled where the cost model says so.
    """
    dtypes = {f"b{k}": dtype for k, dtype in enumerate(flat.dtypes)}
    nests = tuple(_unrolled(nest, dtypes, target) for nest in flat.nests)
    return flat if nests == flat.nests else replace(flat, nests=nests)


def _unrolled(nest: Nest, dtypes: Mapping[str, str], target: Target) -> Nest:
    nest = _computed_once(nest)
    if len(nest.axes) < 2 or not nest.axes[-1].extent.is_int:
        return nest
    axis = nest.axes[-1]
    count = axis.extent.const
    if not 2 <= count <= furthest(target.vector_bytes) or len(nest.body) * count > EQUATIONS:
        return nest
    around = [outer for outer in nest.axes[:-1] if _goes_on(nest, outer, axis)]
    if any(isinstance(e, Scan) for e in nest.body) or not around:
        return nest
    result = without_axis(nest, axis)
    if result is None:
        return nest
    dense = any(_goes_on(nest, outer, axis, dense=True) for outer in around)
    return result if (dense and count <= LONGEST) or _faster(result, nest, dtypes, target) else nest


def _computed_once(nest: Nest) -> Nest:
    """The nest without short axes that no value varies along: each is computed once, and stored several times."""
    if any(isinstance(e, Reduce | Scan) for e in nest.body):
        return nest
    values = frozenset[str]().union(*axes_of_values(nest).values())
    for axis in nest.axes[:-1]:
        short = axis.extent.is_int and 2 <= axis.extent.const <= LONGEST
        if not short or axis.name in values or axis.extent.const * len(nest.body) > EQUATIONS:
            continue
        last = replace(nest, axes=(*(a for a in nest.axes if a != axis), axis))
        nest = without_axis(last, axis) or nest
    return nest


def _faster(nest: Nest, other: Nest, dtypes: Mapping[str, str], target: Target) -> bool:
    """Whether ``nest`` is expected to take much less time than ``other``, which does the same."""
    if not target.vector_bytes or not all(a.extent.is_int for a in other.axes):
        return False
    return expected_us(other, dtypes, target) >= _SURE * expected_us(nest, dtypes, target)


def _goes_on(nest: Nest, outer: Axis, axis: Axis, dense: bool = False) -> bool:
    """Whether ``outer`` is long and each store goes on along it behind ``axis``, or does not vary along that.

    ``dense``: where ``axis`` ends, so that all elements of such a store are neighbours.
    """
    if outer.extent.is_int and outer.extent.const < LEAST:
        return False
    stores = [e for e in nest.body if isinstance(e, Store)]
    for eqn in stores:
        inner, around = eqn.index[0].coefficient(axis), eqn.index[0].coefficient(outer)
        if inner is None or around is None or inner not in (0, 1):
            return False
        if dense and around != (1 if inner == 0 else axis.extent):
            return False
        if not dense and not (around - (1 if inner == 0 else axis.extent)).nonnegative():
            return False
    return bool(stores)
