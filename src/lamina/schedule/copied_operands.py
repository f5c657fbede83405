"""Operands of a reduction that lie in another order of memory than the others are copied into theirs first.

The gradient of a norm whose result was stored with channels innermost reads one operand along channels and the other
along rows: whatever is the vector axis, an element of the other comes from every line of memory, perhaps twice. A copy
is made in tiles that are transposed. Only numbers of 16 bits and fewer are copied, which are taken and widened one by
one: floats so far apart take as long as their copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Expr, Loaded, as_expr, prod
from lamina.ir.loops import Buffer, Load, Nest, Store
from lamina.schedule.memory_orders import long_runs
from lamina.schedule.nest_parts import LEAST_POINTS, dense_buffer

__all__ = ["copy_operands"]

_WHOLE = DTYPES["float32"].size
"""Bytes of a number that needs no widening."""


def copy_operands(nest: Nest, buffers: Mapping[str, Buffer], made: list[Buffer]) -> list[Nest]:
    """``nest``, which reduces on a CPU, behind copies of such operands, whose buffers go to ``made``."""
    main, loads = _across(nest, buffers)
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

    return [*copies, replace(nest, body=tuple(read(e) if isinstance(e, Load) else e for e in nest.body))]


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
