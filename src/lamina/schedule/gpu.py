"""How a flat nest is iterated on a GPU: which axes programs share, what stays in registers, how many warps.

The choices follow from bytes and registers: a program's tile should give every thread a few 16-byte accesses, and what
a row keeps across its phases should fit in the registers that its warps own (65,536 a multiprocessor).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

from lamina.base.dtypes import DTYPES
from lamina.base.target import Target
from lamina.ir.loops import Load, Nest, Random, Reduce, Store
from lamina.ir.plan import Block, GpuSchedule
from lamina.schedule.cluster import shared_loop
from lamina.schedule.evict_first import evict_first
from lamina.schedule.gpu_cost import CostModel
from lamina.schedule.gpu_facts import (
    BUSY_POINTS,
    MANY_POINTS,
    MUCH,
    ROWS_IN_COMMON,
    even_tile,
    filled,
    guess,
    power,
    warps_for,
)
from lamina.schedule.gpu_in_common import apart_in_common, rows_in_common, whole_accesses
from lamina.schedule.gpu_reductions import Reductions
from lamina.schedule.gpu_refine import REGISTERS, refined
from lamina.schedule.gpu_work import computes_at_points
from lamina.schedule.product_tiles import product_schedules

__all__ = ["DIVIDED_POINTS", "choose", "fitter", "in_small_tiles", "small_tile"]

_WINDOW_POINTS, _WINDOW_RUN, _WIDE_RESULTS = 16, 64, 4
"""Points and elements of their run in a program that sums over windows; sums of each up to which a thread takes a
16-byte access (H200, 7x7 filters with all taps written out; 192 channels, 28 x 28: 16 x 64 and 8 elements a thread
56 us, 4 elements 64, for seven sums 61; 384 channels, 14 x 14, seven sums: 36 and 32).
"""
DIVIDED_POINTS, _DIVIDED = 1024, 4
"""Points of a tile whose places are quotients and remainders, and of them for each thread, in 16 bits of two axes twice
as many: each point takes divisions (H100, 192 x 257 x 14 x 15 in bfloat16: 59.7 us with 2048 points and 16 a thread,
52.0 with 1024 and eight, 38.0 with four; 192 x 53970: 35.8, 32.1 with eight; 1024 x 72 x 73 in float32: 50.8 with
eight, 43.4 with four). Where all accesses are wide each thread takes one (H200, windows of a rolled image of
32 x 56 x 56 x 192 in bfloat16: 27.0 us with four, 22.8 with eight; back again 28.1 and 22.8).
"""
_SMALLEST, _LARGEST = 128, 2048
"""Points of the smallest elementwise tile, and of one that is not made smaller."""
_WARPS, _SHORTEST, _FEW_WARPS = 12, 8, 4
"""Warps of a multiprocessor and rows of a tile down to which tiles of columns of
which much is computed are cut, and their warps: special functions take as many registers again (arc tangents of two:
the compiler spilled at an estimate of 117). (H100, four warps, 150 instructions at a point, 64, 16 and 8 rows of 64
columns: not compiled in three seconds, 1040 us and 548; arc tangents of two, 32 rows and a quarter: 381 us and 288.)
"""
_SCRATCH = 8192
"""Bytes of shared memory left to reductions."""


def choose(
    nest: Nest, dtypes: Mapping[str, str], target: Target, alone: bool = False, by_rules: bool = False
) -> GpuSchedule:
    """The schedule to use when nothing is measured. ``dtypes`` gives each flat buffer's element type.

    ``alone``: the nest has a kernel of its own, whose programs may form clusters. ``by_rules``: the rules' choice is
    not compared with schedules near it.
    """
    products = product_schedules(nest, dtypes, target)
    if products:
        return products[0]
    chooser = _Chooser(nest, dtypes, target)
    found = chooser.schedule()
    extents = {a.name: guess(a.extent) for a in nest.axes}
    if chooser.bytes() > 2:
        found = _with_room(nest, dtypes, target, found, extents)
    shared = shared_loop(nest, dtypes, target, found, extents) if alone else None
    if shared is not None:
        return shared
    if not by_rules:
        found = refined(nest, chooser, found, extents, chooser.fitting)
    return evict_first(nest, dtypes, target, found, extents)


def _with_room(
    nest: Nest, dtypes: Mapping[str, str], target: Target, found: GpuSchedule, extents: Mapping[str, int]
) -> GpuSchedule:
    """``found`` with shorter tiles where a loop down columns of 32-bit numbers computes much and takes the registers
    or shared memory that other programs would have: they are what works while one waits.
    """
    loops = [k for k, b in enumerate(found.blocks) if b.role == "loop"]
    if found.kind != "columns" or len(loops) != 1 or not computes_at_points(nest, dtypes):
        return found
    cost, (at,) = CostModel(nest, dtypes, target, extents), loops

    def fits(schedule: GpuSchedule) -> bool:
        expected = cost(schedule)
        wanted = min(_WARPS, -(-expected.programs // target.processors) * schedule.warps)
        return expected.registers <= REGISTERS and expected.resident * schedule.warps >= wanted

    points = prod(b.size for b in found.blocks)
    own = found.stages == 1 and points <= 8 * 32 * found.warps  # columns that are not read ahead
    if not own and not fits(found):
        found = replace(found, warps=min(found.warps, _FEW_WARPS))
    least = 2 * _SHORTEST if own else _SHORTEST
    while found.blocks[at].size > least and not fits(found):
        shorter = replace(found.blocks[at], size=found.blocks[at].size // 2)
        found = replace(found, blocks=(*found.blocks[:at], shorter, *found.blocks[at + 1 :]))
    return found if own else _among_more(found, at, cost, 8 * target.processors)


def _among_more(found: GpuSchedule, at: int, cost: CostModel, enough: int) -> GpuSchedule:
    """``found`` with narrower tiles where short ones are few programs' work: some processors would have one more than
    others (H200, sums over 1785 rows of 26,176 numbers by 409 programs of 8 x 64 332 us, by 1636 of 32 x 16 247; over
    516 of 13,035 by 408 550 us, by 1632 of 16 x 16 412).
    """
    *others, across = found.blocks
    if found.blocks[at].size > _SHORTEST or across.role != "grid" or cost(found).programs >= enough:
        return found
    while across.size > 2 * _SHORTEST and cost(replace(found, blocks=(*others, across))).programs < enough:
        across = replace(across, size=across.size // 2)
    others[at] = replace(others[at], size=2 * others[at].size)
    return replace(found, blocks=(*others, across))


def _filled_sides(lengths: list[int], sides: list[int], nbytes: int) -> tuple[list[int], int]:
    """Sides of a turned tile of which most points exist, of 32 bytes at least, and how many lines of the other axes
    fill the tile (H100, 512 x 8 x 75 x 76 in bfloat16: sides of 64 242 us, of 16 with four lines 143).
    """
    found = []
    for length, side in zip(lengths, sides, strict=True):
        while side * nbytes > 32 and filled(length, side) < 0.85 * filled(length, side // 2):
            side //= 2
        found.append(side)
    return found, max(1, 512 // (found[0] * found[1])) if found != sides else 1


def small_tile(total: int, target: Target) -> int | None:
    """Points of an elementwise tile of which ``total`` points make two for each processor; ``None`` for many points."""
    points = max(_SMALLEST, power(total // target.processors // 2))
    return points if points < _LARGEST else None


def in_small_tiles(schedule: GpuSchedule, points: int) -> GpuSchedule:
    """An elementwise schedule of one block with at most so many points in a tile."""
    if schedule.kind != "pointwise" or len(schedule.blocks) != 1 or schedule.blocks[0].size <= points:
        return schedule
    (block,) = schedule.blocks
    return replace(schedule, blocks=(replace(block, size=points),), warps=warps_for(points, 8))


def fitter(nest: Nest, dtypes: Mapping[str, str], target: Target) -> Callable[[GpuSchedule], GpuSchedule]:
    """Gives schedules of the nest as many stages as shared memory holds."""
    return _Chooser(nest, dtypes, target).fitting


class _Chooser(Reductions):
    """Chooses a nest's schedule."""

    def schedule(self) -> GpuSchedule:
        if self.scanned:
            found = self.scan()
        elif not self.sets:
            found = self.pointwise()
        elif len(self.sets) == 1 and self.slides():
            found = self.windows()
        elif len(self.sets) == 1:
            crossed = self.transposed_axes()
            if crossed is not None and self.fast in self.sets[0] and crossed[0] not in self.sets[0]:
                self.fast = crossed[0]  # tiles of both axes, so that every operand is read in wide accesses
            found = self.rows() if self.fast in self.sets[0] or self.fast is None else self.columns()
        else:
            found = self.mixed()
        return self.fitting(self.in_order(found))

    def fitting(self, found: GpuSchedule) -> GpuSchedule:
        """The schedule with as many stages as shared memory holds: each but one keeps a tile of every load."""
        looped = {a for b in found.blocks if b.role == "loop" for a in b.axes}
        tiles = 0
        for eqn in self.nest.body:
            over = self.values[eqn.out] if isinstance(eqn, Load) else frozenset()  # a gather's index varies by values
            if isinstance(eqn, Load) and over & looped:
                blocks = [b for b in found.blocks if over & set(b.axes)]
                points = 1
                for block in blocks:
                    points *= block.size
                tiles += points * DTYPES[self.dtypes[eqn.buffer]].size
        stages = found.stages
        while stages > 1 and (stages - 1) * tiles > self.target.shared_bytes - _SCRATCH:
            stages -= 1
        return found if stages == found.stages else replace(found, stages=stages)

    def pointwise(self) -> GpuSchedule:
        if not self.names:
            return GpuSchedule("pointwise", (), warps=1)
        total = self.size(self.names)
        drawn = any(isinstance(e, Random) for e in self.nest.body)
        points = 2048 if self.bytes() <= 2 and not drawn and not self.heavy() else 1024
        predicated = self.changes_little()
        if predicated:
            points = 8192
        elif self.busy():
            points = min(points, BUSY_POINTS)
        if self.known(self.names):
            points = min(points, max(_SMALLEST, power(total // self.target.processors // 2)))
        each = 64 if predicated else 8 if points < 2048 else 16
        transposed_axes = self.transposed_axes()
        if transposed_axes is not None:
            return self.tiles(*transposed_axes)
        if len(self.names) == 1:
            block = Block((self.names[0],), points, "grid")
            return GpuSchedule("pointwise", (block,), warps=warps_for(points, each), approximate=self.approximate)
        run = self.run()
        rest = [a for a in self.names if a not in run]
        if rest and total >= MANY_POINTS and apart_in_common(self, run, rest[-1]):
            return rows_in_common(self, run, rest)
        width = self.size(run)
        across = min(power(width), points)
        aligned = width % 8 == 0 or not self.known(run)
        if len(run) > 1 and aligned:
            points, each = (points, each) if rest else self.divided(points, each)
            across = even_tile(width, points)
            high = max(1, points // across) if rest else 1
            points = across * high
            blocks = [*self.lines(rest, high), Block(run, across, "grid")]
        elif across * 4 <= width * 5 and (width >= 64 or len(self.names) > 1) and aligned:
            high = max(1, points // across)
            if self.few_terms(run) and total >= MANY_POINTS:
                across = min(across, 2048 // self.bytes())  # a wide access of each thread of four warps
                high = ROWS_IN_COMMON
                points, each = across * high, 16 // self.bytes() * high
            blocks = [Block(tuple(rest), high, "grid"), Block(run, across, "grid")]
        else:
            points, each = self.divided(points, each)
            order = self.names if self.names[-1] in run else [*rest, *run]
            blocks = [Block(tuple(order), points, "grid")]
        return GpuSchedule("pointwise", tuple(blocks), warps=warps_for(points, each), approximate=self.approximate)

    def divided(self, points: int, each: int) -> tuple[int, int]:
        """At most so many points of a tile whose places are quotients and remainders, and for each thread."""
        if self.changes_little():
            return points, each
        points = min(points, DIVIDED_POINTS)
        if whole_accesses(self):
            return points, 16 // self.bytes()
        return points, _DIVIDED if self.bytes() > 2 or len(self.names) > 2 else 2 * _DIVIDED

    def windows(self) -> GpuSchedule:
        """Windows in a loop over their rows: a thread holds the sums of all that a point stores."""
        (inner,) = self.sets
        run = self.run()
        rest = self.ordered([a for a in self.names if a not in inner and a not in run])
        if not rest:
            return self.columns()
        results = sum(isinstance(e, Reduce) for e in self.nest.body)
        across = min(power(self.size(run)), _WINDOW_RUN)
        rows = Block(self.ordered(inner), 1, "loop")
        blocks = (Block(rest, _WINDOW_POINTS, "grid"), rows, Block(run, across, "grid"))
        each = 8 if results <= _WIDE_RESULTS else 4
        return GpuSchedule(
            "columns", blocks, warps=warps_for(_WINDOW_POINTS * across, each), approximate=self.approximate
        )

    def tiles(self, slow: str, fast: str) -> GpuSchedule:
        quick = self.run(fast)
        tall = tuple(a for a in self.run(slow) if a not in quick)
        if not tall:  # a short run of one operand goes on along the other's: a filter's taps and channels
            tall, quick = (slow,), (fast,)
        rest = tuple(a for a in self.names if a not in (*tall, *quick))
        few = sum(isinstance(e, Load) for e in self.nest.body) <= 2  # or registers spill
        large = few and not self.heavy() and self.size(self.names) >= 128 * 128 * 4 * self.target.processors
        side = 128 if large and min(self.size(tall), self.size(quick)) >= 128 else 64
        if self.bytes() > 2 or self.instructions >= MUCH:
            side = 32
        heights, lines = [min(power(self.size(a)), side) for a in (tall, quick)], 1
        if rest and self.instructions >= MUCH:
            heights, lines = _filled_sides([self.size(a) for a in (tall, quick)], heights, self.bytes())
        blocks = (
            *((Block(rest, lines, "grid"),) if rest else ()),
            Block(tall, heights[0], "grid"),
            Block(quick, heights[1], "grid"),
        )
        each = 4 if self.instructions >= MUCH else 16 if self.bytes() <= 2 else 8
        warps = min(8, warps_for(lines * heights[0] * heights[1], each))
        return GpuSchedule("pointwise", blocks, warps=warps, approximate=self.approximate)

    def in_order(self, found: GpuSchedule) -> GpuSchedule:
        """Programs share no axis over which a buffer is read and overwritten at one place."""
        stored = {e.buffer: e.index[0] for e in self.nest.body if isinstance(e, Store) and e.mode == "set"}
        shared: set[str] = set(self.names)
        for eqn in self.nest.body:
            if isinstance(eqn, Load) and eqn.buffer in stored:
                shared &= stored[eqn.buffer].axes()
        if shared == set(self.names):
            return found
        blocks: list[Block] = []
        for block in found.blocks:
            apart = [a for a in block.axes if a not in shared]
            if block.role != "grid" or not apart:
                blocks.append(block)
                continue
            common = tuple(a for a in block.axes if a in shared)
            if common:
                blocks.append(Block(common, 1, "grid"))
            blocks.append(Block(tuple(apart), block.size, "loop"))
        blocks.sort(key=lambda b: b.role == "loop")
        return replace(found, blocks=tuple(blocks))
