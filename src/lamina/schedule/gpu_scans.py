"""Long scans of which there are few, cut into parts that programs go through side by side.

Parts are combined first, then the parts' results are scanned, and each part goes on from what is before it. A scan of
what another one gives (the place of a running maximum) is combined once the first one is known, in launches of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.base.target import Target
from lamina.ir.index import Atom, Axis, Expr, as_expr, prod
from lamina.ir.loops import (
    Buffer,
    Compute,
    Constant,
    Equation,
    Index,
    Load,
    Nest,
    Reduce,
    Scan,
    Store,
    axes_of_values,
    defined,
    operands,
    row_major_strides,
)
from lamina.ir.ops import JOINS, SCANS, neutral
from lamina.schedule import work_reasons
from lamina.schedule.loop_reversal import reversed_loops
from lamina.schedule.scan_chunks import ScanChunks, needed, parts_of_scans
from lamina.schedule.simplify import rename

__all__ = ["from_the_start", "scan_in_parts"]

_COMPUTED = {op: JOINS[op] for op in SCANS if op in JOINS}


def scan_in_parts(nest: Nest, buffers: dict[str, Buffer], target: Target, decisions: list[Decision]) -> list[Nest]:
    """The nest, or those that do its work. Buffers for the parts' results are added to ``buffers``."""
    cut = parts_of_scans(nest, buffers, target)
    if cut is None:
        return [nest]
    subject = (nest.name, "scan in parts")
    if isinstance(cut, Reason):
        decisions.append(Decision("cut", subject, False, cut))
        return [nest]
    first, last = _InParts(nest, cut, buffers).nests()
    programs = cut.count * prod(a.extent for a in nest.axes if a != cut.axis)
    decisions.append(Decision("cut", subject, True, work_reasons.SCAN_IN_PARTS(programs=programs)))
    if not cut.axis.extent.is_int:  # nothing says that the parts are many
        return [*first, *last]
    return [*(n for one in first for n in scan_in_parts(one, buffers, target, decisions)), *last]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Parts of one length: the axis of their numbers (none for a single one), that of their points, and the number."""

    part: Axis | None
    inside: Axis
    number: Expr

    def axes(self, nest: Nest, along: Axis) -> tuple[Axis, ...]:
        """The nest's axes over these parts."""
        own = (self.inside,) if self.part is None else (self.part, self.inside)
        return tuple(x for a in nest.axes for x in (own if a == along else (a,)))


def from_the_start(nest: Nest, buffers: dict[str, Buffer], decisions: list[Decision]) -> Nest:
    """The nest with scans from the end turned around, where no memory is contiguous along them: Triton exchanges what
    threads hold to scan it backwards.
    """
    found = {e.axis: e.reverse for e in nest.body if isinstance(e, Scan)}
    if list(found.values()) != [True]:
        return nest
    (along,) = [a for a in nest.axes if a.name in found]
    for eqn in nest.body:
        if isinstance(eqn, Load | Store):
            strides = buffers[eqn.buffer].strides
            place = sum((i * s for i, s in zip(eqn.index, strides, strict=True)), as_expr(0))
            if place.coefficient(along) in (1, -1):
                return nest
    backwards = reversed_loops(nest, [along])
    if backwards is None:
        return nest
    decisions.append(Decision("cut", (nest.name, "scan turned around"), True, work_reasons.SCAN_TURNED()))
    return backwards


class _InParts:
    """The nests of one nest's parts: those of full length, and a shorter one at the end of the axis."""

    def __init__(self, nest: Nest, cut: ScanChunks, buffers: dict[str, Buffer]) -> None:
        self.nest, self.cut, self.buffers = nest, cut, buffers
        self.values = axes_of_values(nest)
        self.reverse = any(e.reverse for e in nest.body if isinstance(e, Scan))
        along = cut.axis
        part = Axis(f"{along.name}_part", cut.count)
        self.full = _Piece(part, Axis(along.name, as_expr(cut.length)), as_expr(part))
        short = _Piece(None, Axis(along.name, cut.rest), cut.count)
        self.short = None if cut.rest == 0 else short
        self.pieces = [self.full] if self.short is None else [self.full, short]
        # What comes first in a scan must be known; the end of one that goes on to there need not.
        self.first = self.pieces if self.reverse else [self.full]
        self.numbers = Axis(part.name, cut.count + (len(self.first) - 1))
        self.device = next(buffers[e.buffer].device for e in nest.body if isinstance(e, Load | Store))

    def nests(self) -> tuple[list[Nest], list[Nest]]:
        """The nests that combine parts and scan the results, for each level of scans, and those that store."""
        before: dict[str, str] = {}
        made: list[Nest] = []
        for level, scans in enumerate(self.levels()):
            mark = f"{self.nest.name}_{{}}{level or ''}"
            totals = {e.out: self.temporary(f"{e.out}_totals", e) for e in scans}
            for piece in self.first:
                own = self.totals(piece, scans, totals, before)
                made.append(replace(own, name=mark.format("totals" if piece is self.full else "end")))
            before |= {e.out: self.temporary(f"{e.out}_before", e) for e in scans}
            made.append(replace(self.before(scans, totals, before), name=mark.format("before")))
        stores = []
        for piece in self.pieces:
            name = self.nest.name if piece is self.full else f"{self.nest.name}_last"
            stores.append(Nest(name, piece.axes(self.nest, self.cut.axis), tuple(self.body(piece, before))))
        return made, stores

    def totals(self, piece: _Piece, scans: list[Scan], totals: Mapping[str, str], before: Mapping[str, str]) -> Nest:
        """What parts come to."""
        body = self.upwards(needed(self.body(piece, before), [e.value for e in scans]), piece.inside)
        kept: set[str] = {piece.inside.name}
        for scan in scans:
            total = f"{scan.out}_total"
            body += _combined(scan, total, piece.inside)
            body.append(Store(totals[scan.out], self.place(scan, piece.number), total, origin=scan.origin))
            kept |= self.values[scan.value]
        axes = piece.axes(self.nest, self.cut.axis)
        return Nest("", tuple(a for a in axes if a == piece.part or a.name in kept), tuple(body))

    def upwards(self, body: list[Equation], inside: Axis) -> list[Equation]:
        """The equations from the last to the first point, where that is how operands lie in memory: for wide accesses.

        A reduction of them is the same.
        """
        steps = {
            coefficient
            for e in body
            if isinstance(e, Load)
            for place in [
                sum((i * s for i, s in zip(e.index, self.buffers[e.buffer].strides, strict=True)), as_expr(0))
            ]
            if (coefficient := place.coefficient(inside)) != 0
        }
        if steps != {as_expr(-1)} or any(isinstance(e, Scan) for e in body):
            return body
        swapped: dict[Atom, Expr | int] = {inside: inside.extent - 1 - as_expr(inside)}
        return [rename(e, {}, swapped) for e in body]

    def before(self, scans: list[Scan], totals: Mapping[str, str], before: Mapping[str, str]) -> Nest:
        """What comes up to each part's end."""
        body: list[Equation] = []
        kept: set[str] = {self.numbers.name}
        for scan in scans:
            total, upto, at = f"{scan.out}_total", f"{scan.out}_upto", self.place(scan, as_expr(self.numbers))
            body += [
                Load(total, totals[scan.out], at, scan.dtype, origin=scan.origin),
                Scan(upto, scan.op, total, self.numbers.name, scan.dtype, scan.reverse, scan.origin),
                Store(before[scan.out], at, upto, origin=scan.origin),
            ]
            kept |= self.values[scan.value] - {self.cut.axis.name}
        axes = [self.numbers if a == self.cut.axis else a for a in self.nest.axes]
        return Nest("", tuple(a for a in axes if a.name in kept), tuple(body))

    def levels(self) -> list[list[Scan]]:
        """The scans of values alone, those of what such give, and so on."""
        depth: dict[str, int] = {}
        found: dict[int, list[Scan]] = {}
        for eqn in self.nest.body:
            deep = max((depth[n] for n in operands(eqn)), default=0)
            if isinstance(eqn, Scan):
                found.setdefault(deep, []).append(eqn)
            for name in defined(eqn):
                depth[name] = deep + isinstance(eqn, Scan)
        return [found[deep] for deep in sorted(found)]

    def body(self, piece: _Piece, before: Mapping[str, str]) -> list[Equation]:
        """The nest's body over parts; scans that are known ``before`` each part go on from there."""
        place = piece.number * self.cut.length + as_expr(piece.inside)
        swapped: dict[Atom, Expr | int] = {self.cut.axis: place}
        result: list[Equation] = []
        for eqn in self.nest.body:
            new = rename(eqn, {}, swapped)
            result += self.continued(new, piece, before[new.out]) if _is_scan(new, before) else [new]
        return result

    def continued(self, eqn: Scan, piece: _Piece, buffer: str) -> list[Equation]:
        """A part's own scan, and what is before it."""
        own, part, edge, later, past = (f"{eqn.out}_{w}" for w in ("own", "part", "edge", "later", "past"))
        at, origin = piece.number + (1 if self.reverse else -1), eqn.origin
        if piece is self.short:
            if self.reverse:
                return [eqn]
            first, always = as_expr(0), self.cut.count.is_int
        else:
            first, always = (self.cut.count - 1 if self.reverse else as_expr(0)), len(self.first) > 1
        load = Load(past, buffer, self.place(eqn, at), eqn.dtype, origin=origin)
        if always:
            return [replace(eqn, out=own), load, *_joined(eqn, past, own)]
        return [
            replace(eqn, out=own),
            Index(part, piece.number, "int64", origin),
            Index(edge, first, "int64", origin),
            Compute(later, "lt" if self.reverse else "gt", (part, edge), "bool", origin),
            replace(load, mask=later, fill=neutral(eqn.op, eqn.dtype)),
            *_joined(eqn, past, own),
        ]

    def place(self, scan: Scan, number: Expr) -> tuple[Expr, ...]:
        """Where the result of a part has its place."""
        return tuple(number if a == self.cut.axis else as_expr(a) for a in self.kept(scan))

    def kept(self, scan: Scan) -> list[Axis]:
        """The axes that a scan's results vary along."""
        over = self.values[scan.value]
        return [a for a in self.nest.axes if a == self.cut.axis or a.name in over]

    def temporary(self, name: str, scan: Scan) -> str:
        """A new contiguous buffer with a place for the result of each part."""
        name = f"{self.nest.name}_{name}"
        while name in self.buffers:
            name += "_"
        shape = tuple(self.numbers.extent if a == self.cut.axis else a.extent for a in self.kept(scan))
        self.buffers[name] = Buffer(name, scan.dtype, shape, row_major_strides(shape), self.device, "temp")
        return name


def _is_scan(eqn: Equation, before: Mapping[str, str]) -> TypeGuard[Scan]:
    return isinstance(eqn, Scan) and eqn.out in before


def _combined(scan: Scan, out: str, inside: Axis) -> list[Equation]:
    """The whole of a part. Logarithms of sums from the greatest term, as a softmax's."""
    over, value, dtype, origin = (inside.name,), scan.value, scan.dtype, scan.origin
    if scan.op != "logaddexp":
        return [Reduce((out,), scan.op, value, over, dtype, origin)]
    return [
        Reduce((f"{out}_top",), "max", value, over, dtype, origin),
        Compute(f"{out}_inf", "isinf", (f"{out}_top",), "bool", origin),
        Constant(f"{out}_zero", 0.0, dtype, origin),
        Compute(f"{out}_base", "where", (f"{out}_inf", f"{out}_zero", f"{out}_top"), dtype, origin),
        Compute(f"{out}_away", "sub", (value, f"{out}_base"), dtype, origin),
        Compute(f"{out}_exp", "exp", (f"{out}_away",), dtype, origin),
        Reduce((f"{out}_sum",), "sum", f"{out}_exp", over, dtype, origin),
        Compute(f"{out}_log", "log", (f"{out}_sum",), dtype, origin),
        Compute(out, "add", (f"{out}_log", f"{out}_base"), dtype, origin),
    ]


def _joined(scan: Scan, past: str, own: str) -> list[Equation]:
    """What a scan gives of all before a part and of the part's own points."""
    out, dtype, origin = scan.out, scan.dtype, scan.origin
    if scan.op in _COMPUTED:
        return [Compute(out, _COMPUTED[scan.op], (past, own), dtype, origin)]
    return [
        Compute(f"{out}_high", "maximum", (past, own), dtype, origin),
        Compute(f"{out}_low", "minimum", (past, own), dtype, origin),
        Compute(f"{out}_apart", "sub", (f"{out}_low", f"{out}_high"), dtype, origin),
        Compute(f"{out}_share", "exp", (f"{out}_apart",), dtype, origin),
        Compute(f"{out}_more", "log1p", (f"{out}_share",), dtype, origin),
        Compute(f"{out}_both", "add", (f"{out}_high", f"{out}_more"), dtype, origin),
        Compute(f"{out}_same", "eq", (f"{out}_high", f"{out}_low"), "bool", origin),
        Compute(f"{out}_inf", "isinf", (f"{out}_high",), "bool", origin),
        Compute(f"{out}_equal", "and", (f"{out}_same", f"{out}_inf"), "bool", origin),
        Compute(out, "where", (f"{out}_equal", f"{out}_high", f"{out}_both"), dtype, origin),
    ]
