"""How long a schedule takes on a GPU, relative to the time its bytes need: bytes in flight, registers, waves.

Memory is kept busy by what is asked for and not there yet: bandwidth times latency must be in flight on each
multiprocessor. A program's share of it are the loads of its tile; how many programs a multiprocessor holds follows from
their threads, registers and shared memory. The constants were fitted to measured candidates (see ``docs/design``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Expr, Loaded
from lamina.ir.loops import Load, Nest, Reduce, Scan, Store, axes_of_values, defined, operands
from lamina.ir.plan import GpuSchedule
from lamina.schedule.gpu_target import GpuTarget

__all__ = ["Cost", "cost"]

_LATENCY = 0.8
"""Microseconds from asking memory for something to having it."""
_SYNC = 0.25
"""What each reduction inside a program adds, as a share of the latency."""
_REGISTERS = 65536
_THREADS = 2048
_PROGRAMS = 32
_BASE = 24
"""Registers of a thread beside the tile's values."""
_SPILL = 3.0
"""What a register that does not fit costs, as a multiple of moving its bytes once."""
_TAIL = 0.5
"""Share of one wave of programs that a kernel's end leaves idle."""
_WIDTH = {16: 1.0, 8: 0.98, 4: 0.92, 2: 0.75, 1: 0.55}
"""Share of the bandwidth reached with accesses of so many bytes a thread."""


@dataclass(frozen=True, slots=True)
class Cost:
    """``share`` of the bandwidth that is expected, and its ground: registers a thread wants, programs that a
    multiprocessor holds, bytes in flight there, programs in all.
    """

    share: float
    registers: int
    resident: int
    in_flight: int
    programs: int


def cost(
    nest: Nest, schedule: GpuSchedule, dtypes: Mapping[str, str], target: GpuTarget, extents: Mapping[str, int]
) -> Cost:
    """What to expect of a schedule; ``extents`` gives each axis its length."""
    tile = _Tile(nest, schedule, dtypes, extents)
    threads = 32 * schedule.warps
    wanted = _BASE + tile.registers(threads)
    most = min(255, _REGISTERS // threads // 8 * 8)
    held = min(-(-wanted // 8) * 8, most)
    ahead = max(schedule.stages - 1, 1) if tile.looped else 1
    resident = min(_THREADS // threads, _REGISTERS // (held * threads), _PROGRAMS)
    if tile.looped and schedule.stages > 1:
        resident = min(resident, target.shared_bytes // max(ahead * tile.loads, 1))
    programs = tile.programs
    resident = max(1, min(resident, -(-programs // target.processors)))
    in_flight = resident * ahead * tile.loads
    needed = 1e3 * target.copy_gbs / target.processors * _LATENCY * (1 + _SYNC * tile.syncs)
    share = in_flight / (in_flight + needed)
    share /= 1 + _SPILL * max(0, wanted - most) * 4 * threads / max(tile.moved, 1)
    slots = target.processors * resident
    if programs >= slots:
        share *= programs / (programs + _TAIL * slots)
    else:
        share *= programs / (-(-programs // target.processors) * target.processors)
    share *= _WIDTH[tile.access(threads)]
    return Cost(share, wanted, resident, in_flight, programs)


class _Tile:
    """A program's tile: what it loads at a time, keeps, and how often it waits for itself."""

    def __init__(
        self, nest: Nest, schedule: GpuSchedule, dtypes: Mapping[str, str], extents: Mapping[str, int]
    ) -> None:
        self.nest, self.schedule, self.dtypes = nest, schedule, dtypes
        self.values = axes_of_values(nest)
        self.block = {a: b for b in schedule.blocks for a in b.axes}
        self.looped = any(b.role == "loop" for b in schedule.blocks)
        self.programs = 1
        for b in schedule.blocks:
            if b.role == "grid":
                length = 1
                for axis in b.axes:
                    length *= extents[axis]
                self.programs *= -(-length // b.size)
        self.syncs = sum(isinstance(e, Reduce | Scan) for e in nest.body)
        self.loads, self.moved = 0, 0
        seen: set[tuple[str, Expr]] = set()
        for eqn in nest.body:
            if not isinstance(eqn, Load | Store):
                continue
            key = eqn.buffer, eqn.index[0]
            points = self.points(self.axes(eqn.index[0]))
            nbytes = points * DTYPES[dtypes[eqn.buffer]].size
            if points > 1 and key not in seen:
                self.moved += nbytes
                self.loads += nbytes if isinstance(eqn, Load) else 0
            seen.add(key)
        self.loads = max(self.loads, 32)

    def axes(self, expr: Expr) -> frozenset[str]:
        found = set(expr.axes())
        for atom in expr.atoms():
            if isinstance(atom, Loaded):
                found |= self.values[atom.name]
        return frozenset(found)

    def points(self, axes: frozenset[str]) -> int:
        total = 1
        for block in {id(self.block[a]): self.block[a] for a in axes}.values():
            total *= block.size
        return total

    def registers(self, threads: int) -> int:
        """Most registers of a thread that values of the tile take at once."""
        body = self.nest.body
        last: dict[str, int] = {}
        for at, eqn in enumerate(body):
            for name in operands(eqn):
                last[name] = at
        looped = {a for b in self.schedule.blocks if b.role == "loop" for a in b.axes}
        ends = [at for at, e in enumerate(body) if isinstance(e, Reduce) and set(e.axes) & looped]
        live: dict[str, float] = {}
        most = 0.0
        for at, eqn in enumerate(body):
            if not isinstance(eqn, Store):
                for name in defined(eqn):
                    points = self.points(self.values[name])
                    live[name] = max(1.0, points / threads) if points > 1 else 0.0
            most = max(most, sum(live.values()))
            for name in [n for n in live if last.get(n, -1) <= at]:
                del live[name]
            if at in ends:  # what is needed again is read again
                live = {n: size for n, size in live.items() if not self.values[n] & looped}
        return int(most)

    def access(self, threads: int) -> int:
        """Bytes that a thread can move at once along the contiguous axis: 1 to 16, of the largest operand."""
        best = (0, 1)
        for eqn in self.nest.body:
            if isinstance(eqn, Load | Store):
                points = self.points(self.axes(eqn.index[0]))
                size = DTYPES[self.dtypes[eqn.buffer]].size
                best = max(best, (points * size, size))
        nbytes, size = best
        each = max(nbytes // threads, 1)
        return max(size if size in _WIDTH else 16, min(16, 1 << (each.bit_length() - 1)))
