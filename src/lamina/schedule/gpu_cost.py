"""How long a schedule takes on a GPU, relative to the time its bytes need: bytes in flight, registers, waves.

Memory is kept busy by what is asked for and not there yet: bandwidth times latency must be in flight on each
multiprocessor. A program's share of it are the loads of its tile; how many programs a multiprocessor holds follows from
their threads, registers and shared memory. The constants were fitted to 40 kernels with up to 16 candidates each,
timed on an H100: one of the schedule used unmeasured and the two ranked best is within 3 % of the fastest for 35 of
them. They rank candidates of one nest; they do not predict times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from lamina.base.dtypes import DTYPES
from lamina.base.target import Target
from lamina.ir.index import Expr, Loaded
from lamina.ir.loops import Check, Load, Nest, Reduce, Scan, Store, axes_of_values, defined, operands
from lamina.ir.plan import Block, GpuSchedule
from lamina.ir.predicated import predicated_branches
from lamina.ir.use_def import UseDef

__all__ = ["Cost", "CostModel", "ends_of_phases", "phases"]

_LATENCY = 1.5
"""Microseconds from asking memory for something to having it, while everybody asks."""
_SYNC = 0.1
"""What each reduction inside a program adds, as a share of the latency."""
_BASE = 29
"""Registers of a thread beside the tile's values."""
_HELD = {"pointwise": 0.3, "rows": 0.4, "columns": 0.55, "loops": 0.6, "scan": 0.9}
"""Registers that a tile's values take of those that all of them at once would: code works on parts of a tile."""
_SPILL = 5.0
"""What a register that does not fit costs, as a multiple of moving its bytes once."""
_TAIL = 4.0
"""Waves of programs whose time a kernel's beginning and end take."""
_REREAD = 0.65
"""What reading again from the second-level cache costs, as a share of reading from memory."""
_KEPT = 1.0
"""Share of the second-level cache that holds what programs are about to read again."""
_PIPELINED = 0.85
"""Share of the speed left to loops that read ahead through shared memory."""
_POINTS = 32
"""Points of a thread from which elementwise kernels get slower (see ``_LONG_THREAD``)."""
_LONG_THREAD = 0.0225
"""What each doubling of a thread's points beyond ``_POINTS`` costs an elementwise kernel: it computes while nothing is
in flight.
"""
_LEAST = 1e-3
"""Share of the bandwidth that is assumed at least, so that no time is infinite."""
_RUN = {32: 0.6, 64: 0.78, 128: 0.94}
"""Share of the bandwidth reached where a tile's contiguous runs have so many bytes; longer ones reach it."""
_WIDTH = {16: 1.0, 8: 0.85, 4: 0.6, 2: 0.6, 1: 0.5}
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


class CostModel:
    """What to expect of schedules of one nest; ``extents`` gives each axis its length."""

    latency = _LATENCY

    def __init__(self, nest: Nest, dtypes: Mapping[str, str], target: Target, extents: Mapping[str, int]) -> None:
        self.nest, self.target, self.extents = nest, target, extents
        self.values = axes_of_values(nest)
        self.syncs = sum(isinstance(e, Reduce | Scan) for e in nest.body)
        axis = {a.name: a for a in nest.axes}
        self.accesses: list[tuple[frozenset[str], int, bool]] = []
        self.contiguous: list[tuple[str, int, int]] = []
        seen: set[tuple[str, Expr, bool]] = set()
        predicated = {id(e) for branch in predicated_branches(nest) for e in branch.private}
        for eqn in nest.body:
            if not isinstance(eqn, Load | Store) or id(eqn) in predicated:
                continue
            (expr,) = eqn.index
            key = eqn.buffer, expr, isinstance(eqn, Load)
            if key in seen:
                continue
            seen.add(key)
            axes, size = self._axes(expr), DTYPES[dtypes[eqn.buffer]].size
            self.accesses.append((axes, size, isinstance(eqn, Load)))
            total = size
            for name in axes:
                total *= extents[name]
            self.contiguous += [(a, size, total) for a in sorted(expr.axes()) if expr.coefficient(axis[a]) == 1]
        self.use_def = UseDef(nest.body)
        self._lives = list(self._life())
        self._spans = frozenset(self.values.values())
        self._rounds: dict[frozenset[str], int] = {}

    def __call__(self, schedule: GpuSchedule) -> Cost:
        """The share of the bandwidth that the schedule should reach."""
        target, blocks = self.target, {a: b for b in schedule.blocks for a in b.axes}
        loads = moved = 0
        for axes, size, load in self.accesses:
            points = _points(axes, blocks)
            if points > 1:
                moved += points * size
                loads += points * size if load else 0
        loads = max(loads, 32)
        threads = 32 * schedule.warps
        wanted = _BASE + int(_HELD.get(schedule.kind, 1.0) * self.registers(schedule, threads))
        most = min(255, target.registers // threads // 8 * 8)
        held = min(-(-wanted // 8) * 8, most)
        looped = any(b.role == "loop" for b in schedule.blocks)
        ahead = max(schedule.stages - 1, 1) if looped else 1
        resident = min(
            target.resident_threads // threads, target.registers // (held * threads), target.resident_programs
        )
        if looped and schedule.stages > 1:
            resident = min(resident, target.shared_bytes // (ahead * loads))
        programs = self.programs(schedule)
        resident = max(1, min(resident, -(-programs // target.processors)))
        in_flight = resident * ahead * loads
        needed = 1e3 * target.copy_gbs / target.processors * self.latency * (1 + _SYNC * self.syncs)
        share = in_flight / (in_flight + needed)
        share /= 1 + _SPILL * max(0, wanted - most) * 4 * threads / max(moved, 1)
        slots = target.processors * resident
        share *= self.kept_busy(programs, slots)
        share *= _WIDTH[self.access(blocks, threads)]
        share *= self.run(blocks)
        share /= self.traffic(schedule, slots)
        if looped and schedule.stages > 1:
            share *= _PIPELINED
        each = _points(frozenset(self.extents), blocks) / threads
        if schedule.kind == "pointwise" and each > _POINTS:
            share /= 1 + _LONG_THREAD * math.log2(each / _POINTS)
        return Cost(max(share, _LEAST), wanted, resident, in_flight, programs)

    def kept_busy(self, programs: int, slots: int) -> float:
        """Share of the time in which all processors work, where so many programs run at once."""
        if programs >= slots:
            return programs / (programs + _TAIL * slots)
        return programs / (-(-programs // self.target.processors) * self.target.processors)

    def run(self, blocks: Mapping[str, Block]) -> float:
        """Share of the bandwidth for the shortest contiguous runs of a tile, of those operands that count."""
        least = max((total for _, _, total in self.contiguous), default=0) // 2
        share = 1.0
        for name, size, total in self.contiguous:
            block = blocks[name]
            whole = size
            for axis in block.axes[: block.axes.index(name) + 1]:
                whole *= self.extents[axis]
            run = self.points_in_row(name, block) * size
            # A row that is shorter than a run is followed by the next one.
            if total >= least and run < whole:
                share = min(share, _RUN.get(1 << (run - 1).bit_length(), 1.0))
        return share

    def points_in_row(self, axis: str, block: Block) -> int:
        """Points of a tile of the block, at most, that follow each other along the axis: others of its axes are faster
        than one that is not its last.
        """
        inner = math.prod(self.extents[a] for a in block.axes[block.axes.index(axis) + 1 :])
        return max(block.size // inner, 1)

    def traffic(self, schedule: GpuSchedule, slots: int) -> float:
        """Bytes moved over the fewest possible: loops read once for each phase, from the cache where rows are short."""
        looped = frozenset(a for b in schedule.blocks if b.role == "loop" for a in b.axes)
        if looped not in self._rounds:
            self._rounds[looped] = phases(self.nest, looped)
        rounds = self._rounds[looped]
        if rounds == 1:
            return 1.0
        row = again = total = 0
        for axes, size, load in self.accesses:
            nbytes = size
            for axis in axes:
                nbytes *= self.extents[axis]
            total += nbytes
            if load and axes & looped:
                again += nbytes
                own = size
                for axis in axes & looped:
                    own *= self.extents[axis]
                row += own
        row //= max(schedule.cluster, 1)
        weight = _REREAD if slots * row < _KEPT * self.target.l2_bytes else 1.0
        return 1 + (rounds - 1) * weight * again / max(total, 1)

    def programs(self, schedule: GpuSchedule) -> int:
        """How many programs run the nest."""
        total = 1
        for block in schedule.blocks:
            if block.role in ("grid", "cluster"):
                length = 1
                for axis in block.axes:
                    length *= self.extents[axis]
                total *= -(-length // block.size)
        return total * max(schedule.cluster, 1)

    def registers(self, schedule: GpuSchedule, threads: int) -> int:
        """Most registers of a thread that values of the tile take at once."""
        blocks = {a: b for b in schedule.blocks for a in b.axes}
        looped = {a for b in schedule.blocks if b.role == "loop" for a in b.axes}
        sizes: dict[frozenset[str], float] = {}
        for axes in self._spans:
            points = _points(axes, blocks)
            sizes[axes] = max(1.0, points / threads) if points > 1 else 0.0
        live: dict[str, float] = {}
        held = most = sums = 0.0
        for names, dead, reduce in self._lives:
            for name, axes in names:
                live[name] = sizes[axes]
                held += sizes[axes]
            most = max(most, held)
            for name in dead:
                held -= live.pop(name, 0.0)
            if reduce is not None and not looped.isdisjoint(reduce.axes):
                # Partial results of a whole tile, one set in each phase; what is needed again is read again.
                points = _points(self.values[operands(reduce)[0]] | frozenset(reduce.axes), blocks)
                sums = max(sums, points / threads * (3 if reduce.op == "welford" else 1))
                live = {n: size for n, size in live.items() if looped.isdisjoint(self.values[n])}
                held = sum(live.values())
        return int(most + sums)

    def _life(self) -> Iterator[tuple[list[tuple[str, frozenset[str]]], list[str], Reduce | None]]:
        """Of each equation the values that it makes, with their axes, those that nobody needs after it, and itself if
        it reduces.
        """
        body, ends = self.nest.body, dict[int, list[str]]()
        made = [() if isinstance(e, Store | Check) else defined(e) for e in body]
        for at, names in enumerate(made):
            for name in names:
                ends.setdefault(max(self.use_def.last_use(name), at), []).append(name)
        for at, eqn in enumerate(body):
            known = [(name, self.values[name]) for name in made[at]]
            yield known, ends.get(at, []), eqn if isinstance(eqn, Reduce) else None

    def access(self, blocks: Mapping[str, Block], threads: int) -> int:
        """Bytes that a thread can move at once along the contiguous axis: 1 to 16, of the largest operand."""
        nbytes, size = max(((_points(axes, blocks) * size, size) for axes, size, _ in self.accesses), default=(16, 1))
        each = max(nbytes // threads, 1)
        return max(min(size, 16), min(16, 1 << (each.bit_length() - 1)))

    def _axes(self, expr: Expr) -> frozenset[str]:
        found = set(expr.axes())
        for atom in expr.atoms():
            if isinstance(atom, Loaded):
                found |= self.values[atom.name]
        return frozenset(found)


def phases(nest: Nest, looped: AbstractSet[str]) -> int:
    """How often a program goes over what it loops over; a maximum and its sum of exponentials count once."""
    return max(ends_of_phases(nest, looped), default=0) + 1


def ends_of_phases(nest: Nest, looped: AbstractSet[str], online: bool = True) -> dict[int, list[int]]:
    """By the number of each phase of a loop over these axes, the places of the reductions and stores that it is for;
    ``online``: a maximum and its sum of exponentials are of one phase.
    """
    phase: dict[str, int] = {}
    found: dict[int, list[int]] = {}
    tops = {n for e in nest.body if online and isinstance(e, Reduce) and e.op == "max" for n in e.outs}
    for at, eqn in enumerate(nest.body):
        when = max((phase[n] for n in operands(eqn) if n not in tops or isinstance(eqn, Store)), default=0)
        over = isinstance(eqn, Reduce) and not looped.isdisjoint(eqn.axes)
        if over or (isinstance(eqn, Store) and any(e.axes() & looped for e in eqn.index)):
            found.setdefault(when, []).append(at)
        if not isinstance(eqn, Store | Check):
            phase |= dict.fromkeys(defined(eqn), when + over)
    return found


def _points(axes: frozenset[str], blocks: Mapping[str, Block]) -> int:
    """Points of a tile that a value over these axes has."""
    total = 1
    for block in {blocks[a] for a in axes}:
        total *= block.size
    return total
