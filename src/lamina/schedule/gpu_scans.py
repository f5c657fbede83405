"""Long scans of which there are few, cut into parts that programs go through side by side.

A program goes along a scan from its start to its end. Where there are fewer scans than a GPU has processors, parts are
combined first, then the parts' results are scanned, and each part goes on from what is before it.
"""

from __future__ import annotations

from dataclasses import replace

from lamina.base.decision import Decision
from lamina.base.dtypes import DTYPES
from lamina.ir.index import Atom, Axis, Expr, as_expr, prod
from lamina.ir.loops import (
    Buffer,
    Check,
    Compute,
    Constant,
    Equation,
    Index,
    Load,
    Nest,
    Random,
    Reduce,
    Scan,
    Store,
    axes_of_values,
    defined,
    operands,
)
from lamina.schedule.gpu_target import GpuTarget
from lamina.schedule.simplify import rename

__all__ = ["scan_in_parts"]

_NEUTRAL = {"sum": 0, "prod": 1}
_COMPUTED = {"sum": "add", "prod": "mul"}
_LONG = 4096
"""Points of a scan from which two more launches are worth it."""
_PART = 2048
"""Most points of a part, and the fewest for which one is worth a program."""
_LEAST = 256


def scan_in_parts(nest: Nest, buffers: dict[str, Buffer], target: GpuTarget, decisions: list[Decision]) -> list[Nest]:
    """The nest, or three that do its work. Buffers for the parts' results are added to ``buffers``."""
    cut = _cut(nest, target)
    if cut is None:
        return [nest]
    scan, length = cut
    (along,) = [a for a in nest.axes if a.name == scan.axis]
    parts, inside = Axis(f"{along.name}_part", along.extent // length), Axis(along.name, as_expr(length))
    place: dict[Atom, Expr | int] = {along: as_expr(parts) * length + as_expr(inside)}
    axes = tuple(x for a in nest.axes for x in ((parts, inside) if a == along else (a,)))
    over = axes_of_values(nest)[scan.value]
    kept = tuple(a for a in axes if a != inside and (a == parts or a.name in over))
    device = next(buffers[e.buffer].device for e in nest.body if isinstance(e, Load | Store))
    totals = _buffer(f"{nest.name}_totals", scan.dtype, kept, device, buffers)
    before = _buffer(f"{nest.name}_before", scan.dtype, kept, device, buffers)
    programs = parts.extent * prod(a.extent for a in nest.axes if a != along)
    reason = f"{programs} parts, each from what is before it"
    decisions.append(Decision("cut", (nest.name, "scan in parts"), True, reason))
    body = [rename(e, {}, place) for e in nest.body]
    made = {name: e for e in body for name in defined(e)}
    at = tuple(as_expr(a) for a in kept)
    origin = scan.origin
    first: list[Equation] = [
        *_needed(body, made, scan.value),
        Reduce(("total",), scan.op, scan.value, (inside.name,), scan.dtype, origin),
        Store(totals, at, "total", origin=origin),
    ]
    second: list[Equation] = [
        Load("total", totals, at, scan.dtype, origin=origin),
        Scan("upto", scan.op, "total", parts.name, scan.dtype, origin=origin),
        Store(before, at, "upto", origin=origin),
    ]
    third: list[Equation] = []
    previous = tuple(as_expr(a) - 1 if a == parts else as_expr(a) for a in kept)
    own, part, one, later, past = (f"{scan.out}_{w}" for w in ("own", "part", "one", "later", "past"))
    for eqn in body:
        if not isinstance(eqn, Scan):
            third.append(eqn)
            continue
        third += [
            replace(eqn, out=own, axis=inside.name),
            Index(part, as_expr(parts), "int64", origin),
            Constant(one, 1, "int64", origin),
            Compute(later, "ge", (part, one), "bool", origin),
            Load(past, before, previous, scan.dtype, later, _NEUTRAL[scan.op], origin),
            Compute(eqn.out, _COMPUTED[scan.op], (past, own), scan.dtype, origin),
        ]
    return [
        Nest(f"{nest.name}_totals", tuple(a for a in axes if a in kept or a == inside), tuple(first)),
        Nest(f"{nest.name}_before", kept, tuple(second)),
        Nest(nest.name, axes, tuple(third)),
    ]


def _cut(nest: Nest, target: GpuTarget) -> tuple[Scan, int] | None:
    """The scan to cut and the points of a part; None where that does not pay, or would change more than an order."""
    scans = [e for e in nest.body if isinstance(e, Scan)]
    if len(scans) != 1 or any(isinstance(e, Reduce | Check | Random) for e in nest.body):
        return None
    (scan,) = scans
    if scan.op not in _NEUTRAL or scan.reverse or scan.dtype == "bool" or DTYPES[scan.dtype].size < 4:
        return None
    if DTYPES[scan.dtype].is_float and not target.approximate:
        return None
    if not all(a.extent.is_int for a in nest.axes):
        return None
    (length,) = [a.extent.const for a in nest.axes if a.name == scan.axis]
    others = prod(a.extent for a in nest.axes if a.name != scan.axis).const
    if length < _LONG or others > target.processors:
        return None
    stored = {e.buffer for e in nest.body if isinstance(e, Store)}
    if any(isinstance(e, Load) and e.buffer in stored for e in nest.body):
        return None
    part = _PART
    while part > _LEAST and (length % part or length // part * others < 4 * target.processors):
        part //= 2
    return (scan, part) if length % part == 0 else None


def _needed(body: list[Equation], made: dict[str, Equation], goal: str) -> list[Equation]:
    """The equations that a value needs, in order."""
    wanted = {goal}
    pending = [goal]
    while pending:
        for name in operands(made[pending.pop()]):
            if name not in wanted:
                wanted.add(name)
                pending.append(name)
    return [e for e in body if not isinstance(e, Store) and wanted & set(defined(e))]


def _buffer(name: str, dtype: str, axes: tuple[Axis, ...], device: str, buffers: dict[str, Buffer]) -> str:
    """A new contiguous buffer with a dimension for each axis."""
    while name in buffers:
        name += "_"
    strides: list[Expr] = []
    step = as_expr(1)
    for axis in reversed(axes):
        strides.append(step)
        step = step * axis.extent
    shape = tuple(a.extent for a in axes)
    buffers[name] = Buffer(name, dtype, shape, tuple(reversed(strides)), device, "temp")
    return name
