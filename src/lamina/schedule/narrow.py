"""Narrow temporaries: a value that is the same along an axis is stored once for the axis, not at each of its points.

What is expanded (the gradient of a mean or a sum) costs nothing where it is computed again in its reader. Where it is
stored all the same, since it is costly and read at several places or at computed ones, the axis is left out of memory:
readers leave out its index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lamina.base.decision import Decision
from lamina.ir.access import reads, writes
from lamina.ir.index import Axis, Expr, as_expr
from lamina.ir.loops import (
    Buffer,
    Equation,
    LibraryCall,
    Load,
    Nest,
    Step,
    Store,
    axes_of,
    axes_of_values,
    row_major_strides,
)
from lamina.schedule import reasons
from lamina.schedule.accesses import additions

__all__ = ["narrow_temporaries"]


def narrow_temporaries(
    steps: Sequence[Step], buffers: Mapping[str, Buffer]
) -> tuple[list[Step], dict[str, Buffer], tuple[Decision, ...]]:
    """``steps`` without such axes, the buffers that became smaller, and what was decided."""
    changed: dict[str, Buffer] = {}
    dropped: dict[str, set[int]] = {}
    decisions: list[Decision] = []
    result = list(steps)
    elsewhere = _written_or_called(steps)
    adding = [step for step in steps if isinstance(step, Nest) and additions(step)]
    for number, step in enumerate(steps):
        if not isinstance(step, Nest):
            continue
        alone = [name for name in writes(step) if elsewhere[name] == 1]
        for axis in _unused_axes(step, {n: buffers[n] for n in alone}):
            found = {e.buffer: e.index.index(as_expr(axis)) for e in step.body if isinstance(e, Store)}
            narrower = {**dropped, **{name: dropped.get(name, set()) | {dim} for name, dim in found.items()}}
            if any(additions(_reindexed(nest, narrower)) != additions(nest) for nest in adding):
                continue
            for name, dim in found.items():
                dropped.setdefault(name, set()).add(dim)
                changed[name] = _without(changed.get(name, buffers[name]), dim)
                decisions.append(Decision("narrow", (step.name, name), True, reasons.STORED_NARROW()))
            left = tuple(a for a in step.axes if a != axis)
            step = replace(step, axes=left)
        result[number] = step
    if not dropped:
        return result, {}, ()
    return [_reindexed(step, dropped) if isinstance(step, Nest) else step for step in result], changed, tuple(decisions)


def _written_or_called(steps: Sequence[Step]) -> dict[str, int]:
    """For each buffer, the steps that write to it or are calls that read it."""
    found: dict[str, int] = {}
    for step in steps:
        for name in writes(step) | (reads(step) if isinstance(step, LibraryCall) else set()):
            found[name] = found.get(name, 0) + 1
    return found


def _unused_axes(nest: Nest, alone: Mapping[str, Buffer]) -> Iterator[Axis]:
    """Axes that nothing but places of stores varies over, each the whole of a dimension of a temporary.

    ``alone`` has the buffers that no other step writes to and no call reads.
    """
    stores = [e for e in nest.body if isinstance(e, Store)]
    if any(
        e.mode != "set" or e.mask is not None or e.buffer not in alone or not _is_temporary(alone[e.buffer])
        for e in stores
    ) or len({e.buffer for e in stores}) < len(stores):
        return
    if {e.buffer for e in stores} & {e.buffer for e in nest.body if isinstance(e, Load)}:
        return
    varies = axes_of_values(nest)
    used = {a for e in nest.body if not isinstance(e, Store) for a in axes_of(e, varies)}
    used |= {a for e in stores for a in varies[e.value]}
    for axis in nest.axes:
        fits = all(_is_dimension(axis, e.index, alone[e.buffer]) for e in stores)
        if axis.name not in used and axis.extent.is_int and axis.extent.const > 1 and fits:
            yield axis


def _is_temporary(buffer: Buffer) -> bool:
    return buffer.kind == "temp" and buffer.on_cpu


def _is_dimension(axis: Axis, index: Sequence[Expr], buffer: Buffer) -> bool:
    """Whether the axis is the index in one dimension, all of it, and in no other."""
    at = [d for d, expr in enumerate(index) if axis.name in expr.axes()]
    return len(at) == 1 and index[at[0]] == as_expr(axis) and buffer.shape[at[0]] == axis.extent


def _without(buffer: Buffer, dim: int) -> Buffer:
    """The buffer with one element in a dimension, dense."""
    shape = tuple(as_expr(1) if d == dim else n for d, n in enumerate(buffer.shape))
    return replace(buffer, shape=shape, strides=row_major_strides(shape))


def _reindexed(nest: Nest, dropped: Mapping[str, set[int]]) -> Nest:
    """``nest`` with no place in the dimensions that are left out."""

    def changed(eqn: Equation) -> Equation:
        if not isinstance(eqn, Load | Store) or eqn.buffer not in dropped:
            return eqn
        left = dropped[eqn.buffer]
        return replace(eqn, index=tuple(as_expr(0) if d in left else e for d, e in enumerate(eqn.index)))

    return replace(nest, body=tuple(changed(e) for e in nest.body))
