"""Chunked scans: whether a scan is cut into chunks for a GPU, and their length, by estimated times of both ways.

A program goes along a scan tile after tile, waits for each tile's loads before it asks for the next, and has one
processor for each tile's instructions. Where there are fewer programs than keep memory and processors busy, that is the
time it takes. In parts, what the scans read is read and computed twice, and two more launches take what they take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamina.base.dtypes import DTYPES
from lamina.base.reasons import Reason
from lamina.base.target import Target
from lamina.ir.index import Axis, Expr, prod
from lamina.ir.loops import Buffer, Equation, Load, Nest, Reduce, Scan, Store, axes_of, axes_of_values
from lamina.ir.use_def import UseDef
from lamina.schedule import work_reasons
from lamina.schedule.gpu_cut_accesses import Accesses
from lamina.schedule.gpu_cutting import HALVES, NestToCut
from lamina.schedule.gpu_facts import guess, power
from lamina.schedule.gpu_work import executed, instructions_of

__all__ = ["ScanChunks", "needed", "parts_of_scans", "read_points"]

_TILE = 2048
"""Points of a scan that a program takes at once."""
_LATENCY = 0.7
"""Microseconds of such a tile, from its loads to its stores (H100: 28,000 tiles of one program took 19.6 ms)."""
_RESIDENT = 4
"""Programs of a processor that wait for their tiles side by side."""
_LAUNCHES = 8.0
"""Microseconds of two more launches and of the scan over the parts' results."""
_SHARE = 0.8
"""Share of the copy bandwidth that the launches reach."""
_PAYS = 0.9
"""Share of the time that the parts may take."""
_ROW_PART, _LEAST_ROW_PART = 4096, 1024
"""Points of a part that lies in one piece: one tile, or less where programs would be too few."""
_COLUMN_PART, _LEAST_COLUMN_PART = 2048, 64
"""Points of a part beside others in memory."""
_MOST_PARTS = 16384
"""Parts whose results one program scans at once."""
_COLUMNS = 32
"""Scans that a program takes side by side."""
_WAVES = 4
"""Programs wanted for each processor."""
_ALMOST, _WIDE = 8, 8
"""Share of a tile that may be left empty; points that parts have multiples of, for wide accesses."""
_OPS = ("sum", "prod", "max", "min", "logaddexp")


@dataclass(frozen=True, slots=True)
class ScanChunks:
    """All scans of a nest, along ``axis``, in ``count`` parts of ``length`` points and ``rest`` points at its end."""

    axis: Axis
    length: int

    @property
    def count(self) -> Expr:
        return self.axis.extent // self.length

    @property
    def rest(self) -> Expr:
        return self.axis.extent % self.length


def parts_of_scans(nest: Nest, buffers: dict[str, Buffer], target: Target) -> ScanChunks | Reason | None:
    """The parts of the nest's scans, why such as would pay cannot be made, or ``None`` where they do not pay."""
    scans = [e for e in nest.body if isinstance(e, Scan)]
    if not scans or any(a.extent == 0 for a in nest.axes):
        return None
    (along,) = [a for a in nest.axes if a.name == scans[0].axis]
    fast = Accesses(NestToCut(nest), buffers).fast()
    found = _paying(nest, along, fast, buffers, target)
    if found is None:
        return None
    columns = fast is not None and fast != along.name
    return _refused(nest, scans, columns, target) or found


def _refused(nest: Nest, scans: list[Scan], columns: bool, target: Target) -> Reason | None:
    """Why the scans must stay whole, or ``None``."""
    if len({(e.axis, e.reverse) for e in scans}) > 1 or any(isinstance(e, Reduce) for e in nest.body):
        return work_reasons.SCAN_BESIDE_OTHERS()
    for scan in scans:
        if scan.op not in _OPS or scan.dtype == "bool" or scan.dtype in HALVES:
            return work_reasons.SCAN_NOT_JOINED(op=scan.op, dtype=scan.dtype)
        if DTYPES[scan.dtype].is_float and scan.op not in ("max", "min") and not target.approximate:
            return work_reasons.SCAN_ORDER_KEPT()
        if scan.op == "prod" and columns and DTYPES[scan.dtype].is_float:  # which eager goes through one by one
            return work_reasons.SCAN_OVERFLOW()
    stored = {e.buffer for e in nest.body if isinstance(e, Store)}
    if any(isinstance(e, Load) and e.buffer in stored for e in nest.body):
        return work_reasons.SCAN_OVERWRITES()
    return None


def _paying(nest: Nest, along: Axis, fast: str | None, buffers: dict[str, Buffer], target: Target) -> ScanChunks | None:
    """The parts that take less time than whole scans; ``fast`` is the contiguous axis."""
    others = guess(prod(a.extent for a in nest.axes if a != along))
    beside = next((a for a in nest.axes if a.name == fast and a != along), None)
    width = 1 if beside is None else min(power(guess(beside.extent)), _COLUMNS)
    programs = others if beside is None else others // guess(beside.extent) * -(-guess(beside.extent) // width)
    least, most = (_LEAST_ROW_PART, _ROW_PART) if beside is None else (_LEAST_COLUMN_PART, _COLUMN_PART)
    if not along.extent.is_int:
        known = all(a.extent.is_int for a in nest.axes if a != along)
        length = most if beside is None else max(least, _TILE // width)
        few = known and programs <= target.processors
        return ScanChunks(along, length) if few else None
    points = along.extent.const
    waves = max(1.0, programs / (target.processors * _RESIDENT))
    at_once = points * width / _TILE * _LATENCY * waves
    every, again = read_points(nest, buffers)
    moved = points * others / (1e3 * target.copy_gbs * _SHARE)
    all_, scanned = instructions_of_points(nest)
    computed = executed(points * others) / (1e3 * target.copy_gbs)
    alone = all_ * computed * max(1.0, target.processors / programs)
    at_once = max(at_once + alone, every * moved)
    in_parts = max((every + again) * moved, (all_ + scanned) * computed) + _LAUNCHES
    if points < 2 * least or in_parts > _PAYS * at_once:
        return None
    length = most
    while length > least and -(-points // length) * programs < _WAVES * target.processors:
        length //= 2
    while -(-points // length) > _MOST_PARTS and beside is None:
        length *= 2
    return ScanChunks(along, _dividing(points, length, _WIDE if beside is None else 1))


def _dividing(points: int, length: int, step: int) -> int:
    """A divisor of ``points`` that fills a tile of ``length`` almost, if there is one: no shorter part is left."""
    whole = [n for n in range(length, length - length // _ALMOST, -step) if points % n == 0]
    return whole[0] if whole else length


def read_points(nest: Nest, buffers: dict[str, Buffer]) -> tuple[int, int]:
    """Bytes moved for each point by the nest, and by those of its loads that its scans need."""
    whole = guess(prod(a.extent for a in nest.axes))
    sizes: dict[int, int] = {}
    for eqn in nest.body:
        if isinstance(eqn, Load | Store):
            names = {a for e in eqn.index for a in e.axes()}
            own = guess(prod(a.extent for a in nest.axes if a.name in names))
            sizes[id(eqn)] = DTYPES[buffers[eqn.buffer].dtype].size if 8 * own >= whole else 0
    again = needed(nest.body, [e.value for e in nest.body if isinstance(e, Scan)])
    return sum(sizes.values()), sum(sizes.get(id(e), 0) for e in again)


def instructions_of_points(nest: Nest) -> tuple[float, float]:
    """Instructions of each point of the nest, and those of them that its scans need."""
    whole = guess(prod(a.extent for a in nest.axes))
    values = axes_of_values(nest)
    sizes = {a.name: a.extent for a in nest.axes}

    def count(body: Sequence[Equation]) -> float:
        points = [(e, guess(prod(sizes[a] for a in axes_of(e, values)))) for e in body]
        return sum(instructions_of(e) for e, size in points if 8 * size >= whole)

    return count(nest.body), count(needed(nest.body, [e.value for e in nest.body if isinstance(e, Scan)]))


def needed(body: tuple[Equation, ...] | list[Equation], goals: list[str]) -> list[Equation]:
    """The equations that values need, in order."""
    use_def = UseDef(body)
    return [body[p] for p in use_def.backward_slice(use_def.positions[name] for name in goals)]
