"""Operands of a reduction that lie in another order of memory than suits its vectors are copied first.

The gradient of a norm whose result was stored with channels innermost reads one operand along channels and the other
along rows: whatever is the vector axis, an element of the other comes from every line of memory, perhaps twice. A copy
is made in tiles that are transposed. Only numbers of 16 bits and fewer are copied, which are taken and widened one by
one: floats so far apart take as long as their copy.

Distances of all pairs of points read the coordinates of a point along memory and sum them up, with as many sums as
there are pairs: along coordinates each pair ends with a sum over a vector's lanes, along points every element is far
from the next. What is read again for each of the other points is copied so that points are next to each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from lamina.base.dtypes import DTYPES
from lamina.base.reasons import Reason
from lamina.ir.index import Axis, Expr, Loaded, as_expr, prod
from lamina.ir.loops import Buffer, Load, Nest, Reduce, Store, axes_of_values
from lamina.schedule import reasons
from lamina.schedule.lanes import LANES
from lamina.schedule.memory_orders import long_runs
from lamina.schedule.nest_parts import FEW, LEAST_POINTS, dense_buffer

__all__ = ["copy_operands"]

_WHOLE = DTYPES["float32"].size
"""Bytes of a number that needs no widening."""


def copy_operands(nest: Nest, buffers: Mapping[str, Buffer], made: list[Buffer]) -> tuple[list[Nest], Reason]:
    """``nest``, which reduces on a CPU, behind copies of such operands, whose buffers go to ``made``; and why."""
    (main, loads), why = _across(nest, buffers), reasons.OPERAND_COPIED()
    if not loads:
        (main, loads), why = _read_again(nest, buffers), reasons.SIDE_BY_SIDE()
    copies: list[Nest] = []
    copied: dict[tuple[str, tuple[Expr, ...]], tuple[str, tuple[Expr, ...]]] = {}
    for load in loads:
        if (load.buffer, load.index) in copied:
            continue
        axes = sorted((a for a in nest.axes if a.name in _axes(load)), key=lambda a: a.name == main)
        at, label = tuple(as_expr(a) for a in axes), f"{nest.name}_copy{len(made)}"
        made.append(dense_buffer(label, load.dtype, axes))
        copies.append(Nest(label, tuple(axes), (load, Store(label, at, load.out, "set", None, load.origin))))
        copied[load.buffer, load.index] = label, at

    def read(load: Load) -> Load:
        buffer, index = copied.get((load.buffer, load.index), (load.buffer, load.index))
        return load if load.mask is not None else replace(load, buffer=buffer, index=index)

    return [*copies, replace(nest, body=tuple(read(e) if isinstance(e, Load) else e for e in nest.body))], why


def _read_again(nest: Nest, buffers: Mapping[str, Buffer]) -> tuple[str, list[Load]]:
    """An axis to have vectors along, and loads that are read again and again, along memory over short sums."""
    sums = [e for e in nest.body if isinstance(e, Reduce)]
    short = {name for e in sums for name in e.axes if _length(nest, name) <= FEW * LANES}
    reduced = {name for e in sums for name in e.axes}
    varies = axes_of_values(nest)
    for axis in nest.axes:
        main = axis.name
        if main in reduced or axis.extent.const < 2 * LANES or not any(main in varies[e.outs[0]] for e in sums):
            continue
        over = [e for e in nest.body if isinstance(e, Load | Store) and main in _axes(e)]
        far = [e for e in over if _stride(e, main, buffers) != 1]
        if far and all(isinstance(e, Load) and _may_be_copied(nest, e, short, buffers) for e in far):
            return main, [e for e in far if isinstance(e, Load)]
    return "", []


def _may_be_copied(nest: Nest, load: Load, short: set[str], buffers: Mapping[str, Buffer]) -> bool:
    """Whether the load reads along a short sum what is read several times, and stays as it is."""
    if not _is_plain(load) or any(isinstance(e, Store) and e.buffer == load.buffer for e in nest.body):
        return False
    points = prod(a.extent for a in nest.axes).const
    own = prod(a.extent for a in nest.axes if a.name in _axes(load)).const
    return points >= FEW * own and not long_runs(nest, [load], buffers).isdisjoint(short)


def _length(nest: Nest, name: str) -> int:
    return next(a.extent.const for a in nest.axes if a.name == name)


def _stride(eqn: Load | Store, axis: str, buffers: Mapping[str, Buffer]) -> int | None:
    """Elements from one point of ``axis`` to the next, ``None`` where that is not a number."""
    place = sum((i * s for i, s in zip(eqn.index, buffers[eqn.buffer].strides, strict=True)), as_expr(0))
    found = next((place.coefficient(a) for a in place.atoms() if isinstance(a, Axis) and a.name == axis), None)
    return found.const if found is not None and found.is_int else None


def _is_plain(load: Load) -> bool:
    """Whether the load stands for itself: no mask and no place in it is computed."""
    return load.mask is None and not any(isinstance(a, Loaded) for i in load.index for a in i.atoms())


def _axes(eqn: Load | Store) -> set[str]:
    return {name for i in eqn.index for name in i.axes()}


def _across(nest: Nest, buffers: Mapping[str, Buffer]) -> tuple[str, list[Load]]:
    """The axis that most memory goes on along, and loads over it of as many elements that go on along another."""
    written = {e.buffer for e in nest.body if isinstance(e, Store)}
    along = Counter[str]()
    found: list[tuple[Load, str]] = []
    extents = {a.name: a.extent for a in nest.axes}
    for eqn in nest.body:
        if not isinstance(eqn, Load | Store):
            continue
        dtype = DTYPES[buffers[eqn.buffer].dtype]
        points = prod(extents[name] for name in _axes(eqn)).const
        for name in long_runs(nest, [eqn], buffers) if points >= LEAST_POINTS else ():
            along[name] += points * dtype.size
            if isinstance(eqn, Load) and _is_plain(eqn) and eqn.buffer not in written and dtype.size < _WHOLE:
                found.append((eqn, name))
    main = max(along, key=lambda name: along[name], default="")
    return main, [load for load, name in found if name != main and main in _axes(load)]
