"""Which buffers a step reads and writes: what order, memory planning and verification rest on."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lamina.base.text import one_line
from lamina.ir.index import Axis, Expr, as_expr
from lamina.ir.loops import Buffer, BufferView, LibraryCall, Load, Nest, Source, Store
from lamina.ir.plan import KernelCall

__all__ = ["SHORT_ROW", "AnyStep", "arguments", "contiguous_axes", "origins", "provenance", "reads", "views", "writes"]

SHORT_ROW = 32
"""Elements along memory below which the loops of a CPU are too short: two vectors, or four of AVX2."""

AnyStep = Nest | LibraryCall | KernelCall


def arguments(call: LibraryCall) -> Iterator[Any]:
    """Every argument of a library call, lists flattened, keywords after positions."""
    stack: list[Any] = [*reversed([value for _, value in call.kwargs]), *reversed(call.args)]
    while stack:
        value = stack.pop()
        if isinstance(value, tuple | list):
            stack.extend(reversed(value))
        else:
            yield value


def views(call: LibraryCall) -> list[BufferView]:
    """The windows a library call takes, in order."""
    return [a for a in arguments(call) if isinstance(a, BufferView)]


def reads(step: AnyStep) -> set[str]:
    """Buffers whose contents the step may use. Accumulating and masked stores use what was there before."""
    if isinstance(step, LibraryCall):
        return {view.buffer for view in views(step)} | set(step.mutates)
    if isinstance(step, Nest):
        return _nest_reads(step)
    found = set(step.buffers) - set(step.writes)
    for nest in step.nests:
        found |= _nest_reads(nest)
    return found if step.nests else set(step.buffers)


def writes(step: AnyStep) -> set[str]:
    """Buffers that the step defines or overwrites."""
    if isinstance(step, LibraryCall):
        return {out for out in step.outs if out is not None} | set(step.mutates)
    if isinstance(step, Nest):
        return {eqn.buffer for eqn in step.body if isinstance(eqn, Store)}
    return set(step.writes)


def contiguous_axes(nest: Nest, buffers: Mapping[str, Buffer]) -> set[str]:
    """Axes along which memory is contiguous, for any access that varies over several."""
    found: set[str] = set()
    for eqn in nest.body:
        if isinstance(eqn, (Load, Store)):
            found |= _side_by_side(eqn.index, buffers[eqn.buffer].strides, nest.axes)
    return found


@functools.lru_cache(4096)
def _side_by_side(index: tuple[Expr, ...], strides: tuple[Expr, ...], axes: tuple[Axis, ...]) -> frozenset[str]:
    """The axes along which an access that varies over several of ``axes`` goes from an element to the next one.

    Fusion asks for the nests that it would make of any two: most of what they access was asked for before.
    """
    place = sum((i * s for i, s in zip(index, strides, strict=True)), as_expr(0))
    names = place.axes()
    along = [a for a in axes if a.name in names]
    return frozenset(a.name for a in along if place.coefficient(a) == 1) if len(along) > 1 else frozenset()


def origins(step: AnyStep) -> tuple[str, ...]:
    """Names of the FX nodes a step comes from, in order of first appearance."""
    if isinstance(step, LibraryCall):
        return step.origin
    nests = step.nests if isinstance(step, KernelCall) else (step,)
    return tuple(dict.fromkeys(name for nest in nests for eqn in nest.body for name in eqn.origin))


def _nest_reads(nest: Nest) -> set[str]:
    found: set[str] = set()
    for eqn in nest.body:
        if isinstance(eqn, Load) or (isinstance(eqn, Store) and (eqn.mode != "set" or eqn.mask is not None)):
            found.add(eqn.buffer)
    return found


def provenance(origins: Iterable[str], sources: Mapping[str, Source], most: int = 4) -> str:
    """A comment such as ``model.py:41 gelu, mul; model.py:42 add`` for FX nodes; ``sources`` by node."""
    by_place: dict[str, list[str]] = {}
    for name in origins:
        source = sources.get(name) or Source(name, name)
        parts = source.op.split(".")
        short = parts[1] if len(parts) == 3 else parts[-1]
        found = by_place.setdefault(source.place, [])
        if short not in found:
            found.append(short)
    texts = [f"{place} {', '.join(ops)}".strip() for place, ops in by_place.items()]
    more = f"; and {len(texts) - most} more lines" if len(texts) > most else ""
    return one_line("; ".join(texts[:most]) + more)
