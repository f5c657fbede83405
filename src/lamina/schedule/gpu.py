"""How a flat nest is iterated on a GPU: which axes programs share, what stays in registers, how many warps.

The choices follow from bytes and registers: a program's tile should give every thread a few 16-byte accesses, and what
a row keeps across its phases should fit in the registers that its warps own (65,536 a multiprocessor).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Expr, Loaded, prod
from lamina.ir.loops import Load, Nest, Random, Reduce, Scan, Store, axes_of_values, defined, operands
from lamina.ir.plan import Block, GpuSchedule
from lamina.schedule.column_tiles import COLUMNS, rows_of_tile
from lamina.schedule.gpu_fast import kept_instead
from lamina.schedule.gpu_target import GpuTarget
from lamina.schedule.product_tiles import product_schedules
from lamina.schedule.streams import streamed
from lamina.schedule.team import shared_loop

__all__ = ["MANY_LOADS", "SHORT_ROW_WARP", "choose", "fast_axis", "fitter", "guess", "short_row_warps"]

MANY_LOADS = 8
"""Loads of large operands at a point from which on a thread takes one wide access of each: what is under way at once
are the loads, and their results fill the registers.
"""
_BUSY_POINTS = 1024
"""Points of a tile of such."""

_GUESS = 4096
"""What an unknown size counts as."""
_ROW = 32768
"""Points of a row that 32 warps hold in registers, 32 a thread."""
_SCRATCH = 8192
"""Bytes of shared memory left to reductions."""
_FEW = 64
"""Reduced points up to which a loop over single points beats a second dimension of the tile."""
_WIDE = 64
"""Elements of a run whose accesses are wide."""
_HELD = 8192
"""Points of a row up to which several rows that share operands are held whole."""
_ONE_WARP, _ONE_WARP_POINTS = 512, 1024
"""Widest rows with operands in common of which one warp takes several, and their points together. Several warps lay
such operands out anew through shared memory, and wait for each other (H100, layer norm with a bias before it: 25.4 us
for 50176 rows of 192 with four warps, 18.6 with one; 65.6 and 31.5 for 200704 of 96; 16.2 and 12.2 for 12544 of 384).
"""
_SECTORS = 32
"""Bytes of a run below which a tile fetches more from memory than it uses."""
_SHARED_TILE = 4096
"""Points of a tile of such rows where they are gone over in a loop."""
_SHORT_ROW = 1024
"""Points of a row of which several make a tile."""
SHORT_ROW_WARP = 256
"""Points that a warp reads in one wide access."""
_SIDE = 256
"""Columns of a program of two warps that only reads and reduces them (H200, 64 x 1024 x 2048 over its middle: variances
82 us with tiles of 64 x 128, 77 with 8 x 256; sums 77 and 75).
"""
_LONG = 2048
"""Row width from which unaligned rows are worth a loop with peeled ends."""


def choose(nest: Nest, dtypes: Mapping[str, str], target: GpuTarget, alone: bool = False) -> GpuSchedule:
    """The schedule to use when nothing is measured. ``dtypes`` gives each flat buffer's element type.

    ``alone``: the nest has a kernel of its own, whose programs may form teams.
    """
    products = product_schedules(nest, dtypes, target)
    if products:
        return products[0]
    found = _Chooser(nest, dtypes, target).schedule()
    extents = {a.name: guess(a.extent) for a in nest.axes}
    shared = shared_loop(nest, dtypes, target, found, extents) if alone else None
    return streamed(nest, dtypes, target, found, extents) if shared is None else shared


def fitter(nest: Nest, dtypes: Mapping[str, str], target: GpuTarget) -> Callable[[GpuSchedule], GpuSchedule]:
    """Gives schedules of the nest as many stages as shared memory holds."""
    return _Chooser(nest, dtypes, target).fitting


def guess(extent: Expr) -> int:
    """The number an extent most likely is."""
    if extent.is_int:
        return extent.const
    total = extent.const
    for mono, coef in extent.terms:
        total += coef * int(_GUESS ** len(mono))
    return max(total, 1)


def fast_axis(nest: Nest) -> str | None:
    """The axis along which most of the bytes are contiguous."""
    score = {a.name: 0 for a in nest.axes}
    axis = {a.name: a for a in nest.axes}
    for eqn in nest.body:
        if isinstance(eqn, Load | Store):
            (expr,) = eqn.index
            names = expr.axes()
            weight = guess(prod(axis[a].extent for a in names)) * (3 if isinstance(eqn, Store) else 2)
            for name in names:
                if expr.coefficient(axis[name]) == 1:
                    score[name] += weight
    best = max(score, key=lambda a: (score[a], list(score).index(a)), default=None)
    best = kept_instead(nest, score, best)
    return best if best is not None and score[best] else (nest.axes[-1].name if nest.axes else None)


def _power(count: int) -> int:
    """The next power of two."""
    return 1 << max(count - 1, 0).bit_length()


def _even(width: int) -> int:
    """Points of a run that are worked on at a time: few of the last tile should be beyond its end."""
    return min((256, 128, 64), key=lambda n: (-(-width // n) * n, -n))


def short_row_warps(volume: int) -> int:
    """Warps of a program that reduces rows of so many points and columns across them (a power of two, 1024 at most).

    Together they read one row of 16-bit numbers in one wide access each, so that a thread has the same columns of all
    rows and adds them up in few registers; two where a warp reads two rows or more at once.
    """
    return max(volume // SHORT_ROW_WARP, 1) if volume >= SHORT_ROW_WARP else 2


def _warps(points: int, each: int = 32) -> int:
    """Warps that give every thread about ``each`` of a tile's points."""
    return max(1, min(32, _power(-(-points // (32 * each)))))


class _Chooser:
    def __init__(self, nest: Nest, dtypes: Mapping[str, str], target: GpuTarget) -> None:
        self.nest, self.dtypes, self.target = nest, dtypes, target
        self.axis = {a.name: a for a in nest.axes}
        self.names = list(self.axis)
        self.values = axes_of_values(nest)
        self.reduces = [e for e in nest.body if isinstance(e, Reduce)]
        self.sets = list(dict.fromkeys(frozenset(e.axes) for e in self.reduces))
        self.scanned = {e.axis for e in nest.body if isinstance(e, Scan)}
        self.fast = fast_axis(nest)
        self.approximate = target.approximate and self.rounds()

    def schedule(self) -> GpuSchedule:
        if self.scanned:
            found = self.scan()
        elif not self.sets:
            found = self.pointwise()
        elif len(self.sets) == 1:
            crossed = self.turned()
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

    def rounds(self) -> bool:
        """Whether floating point results are rounded to 16 bits or fewer; beside such, sums of the same values too."""
        over = frozenset[str]().union(*self.sets)
        fine: list[bool] = []
        for eqn in self.nest.body:
            if isinstance(eqn, Store):
                held = DTYPES[self.dtypes[eqn.buffer]]
                if held.is_float:
                    fine.append(held.size <= 2)
                    if held.size > 2 and eqn.index[0].axes() & over:
                        return False
        return any(fine) if over else bool(fine) and all(fine)

    # ---- sizes ------------------------------------------------------------------------------------------------------

    def size(self, names: frozenset[str] | list[str] | tuple[str, ...]) -> int:
        return guess(prod(self.axis[a].extent for a in names))

    def known(self, names: frozenset[str] | list[str] | tuple[str, ...]) -> bool:
        return all(self.axis[a].extent.is_int for a in names)

    def ordered(self, names: frozenset[str] | set[str] | list[str]) -> tuple[str, ...]:
        return tuple(a for a in self.names if a in names)

    def bytes(self) -> int:
        """Size of an element of the largest operand that varies over the fast axis."""
        sizes = [
            (self.size(e.index[0].axes()), DTYPES[self.dtypes[e.buffer]].size)
            for e in self.nest.body
            if isinstance(e, Load | Store) and self.fast in e.index[0].axes()
        ]
        return max(sizes, default=(0, 4))[1]

    def crossing(self, inside: frozenset[str]) -> int:
        """Values varying over ``inside`` that are used again after a reduction that they went into."""
        phase: dict[str, int] = {}
        wanted: set[str] = set()
        for eqn in self.nest.body:
            when = max((phase[n] for n in operands(eqn)), default=0)
            wanted |= {n for n in operands(eqn) if phase[n] < when and self.values[n] & inside}
            for name in defined(eqn):
                phase[name] = when + (isinstance(eqn, Reduce) and bool(set(eqn.axes) & inside))
        return max(len(wanted), 1)

    # ---- kinds ------------------------------------------------------------------------------------------------------

    def pointwise(self) -> GpuSchedule:
        if not self.names:
            return GpuSchedule("pointwise", (), 1)
        total = self.size(self.names)
        heavy = any(isinstance(e, Random) for e in self.nest.body)
        points = 2048 if self.bytes() <= 2 and not heavy else 1024
        rare = self.changes_little()
        if rare:
            points = 8192
        elif self.busy():
            points = min(points, _BUSY_POINTS)
        if self.known(self.names):
            points = min(points, max(128, _power(total // self.target.processors // 2)))
        each = 64 if rare else 8 if points < 2048 else 16
        turned = self.turned()
        if turned is not None:
            return self.tiles(*turned)
        if len(self.names) == 1:
            block = Block((self.names[0],), points, "grid")
            return GpuSchedule("pointwise", (block,), _warps(points, each), 1, False, 0, self.approximate)
        run = self.run()
        rest = [a for a in self.names if a not in run]
        width = self.size(run)
        across = _even(width) if len(run) > 1 else min(_power(width), points)
        aligned = width % 8 == 0 or not self.known(run)
        if len(run) > 1 and aligned:
            high = max(1, points // across)
            blocks = [*self.lines(rest, high), Block(run, across, "grid")]
        elif across * 4 <= width * 5 and (width >= 64 or len(self.names) > 1) and aligned:
            high = max(1, points // across)
            blocks = [Block(tuple(rest), high, "grid"), Block(run, across, "grid")]
        else:
            blocks = [Block(tuple(self.names), points, "grid")]
        return GpuSchedule("pointwise", tuple(blocks), _warps(points, each), 1, False, 0, self.approximate)

    def busy(self) -> bool:
        """Whether every point reads much."""
        whole = self.size(self.names)
        loads = [e for e in self.nest.body if isinstance(e, Load)]
        return sum(self.size(e.index[0].axes()) * 8 >= whole for e in loads) >= MANY_LOADS

    def changes_little(self) -> bool:
        """Whether everything is stored under conditions that are loaded once for many points: programs rarely store."""
        masks = {e.mask for e in self.nest.body if isinstance(e, Store)}
        if None in masks or self.fast is None:
            return False
        loads = [e.index[0].axes() for e in self.nest.body if isinstance(e, Load)]
        return all(self.size(axes) * 8 <= self.size(self.names) for axes in loads)

    def run(self, fast: str | None = None) -> tuple[str, ...]:
        """The fast axis (or another that operands are contiguous along), with the axes before it in the largest such
        operand where it is too short for wide accesses.
        """
        fast = fast or self.fast
        assert fast is not None
        run: tuple[str, ...] = (fast,)
        if self.size(run) >= _WIDE or not self.known(run):
            return run
        accesses = [e.index[0] for e in self.nest.body if isinstance(e, Load | Store)]
        accesses = [e for e in accesses if e.coefficient(self.axis[fast]) == 1]
        widest = max(accesses, key=lambda e: self.size(e.axes()), default=None)
        marks = {a: tuple(a in s for s in self.sets) for a in self.names}
        while widest is not None and self.size(run) < _WIDE:
            step = self.size(run)
            before = [a for a in self.names if a not in run and widest.coefficient(self.axis[a]) == step]
            if len(before) != 1 or marks[before[0]] != marks[fast] or not self.known(before):
                break
            run = (before[0], *run)
        return run

    def lines(self, rest: list[str], high: int) -> list[Block]:
        """Blocks of the axes beside a run, of ``high`` points together; the last axis alone where it has them."""
        if not rest:
            return []
        if len(rest) > 1 and self.known(rest[-1:]) and self.size(rest[-1:]) % high == 0:
            return [Block(tuple(rest[:-1]), 1, "grid"), Block((rest[-1],), high, "grid")]
        return [Block(tuple(rest), high, "grid")]

    def turned(self) -> tuple[str, str] | None:
        """Two axes that different large operands are contiguous along."""
        fast: set[str] = set()
        for eqn in self.nest.body:
            if not isinstance(eqn, Load | Store) or self.size(eqn.index[0].axes()) * 8 < self.size(self.names):
                continue
            expr = eqn.index[0]
            if any(isinstance(a, Loaded) for a in expr.atoms()):
                continue
            found = [a for a in expr.axes() if expr.coefficient(self.axis[a]) == 1 and self.size((a,)) >= 8]
            if len(found) == 1 and len(expr.axes()) > 1:
                fast.add(found[0])
        if len(fast) != 2 or self.fast not in fast:
            return None
        (other,) = fast - {self.fast}
        return other, self.fast

    def tiles(self, slow: str, fast: str) -> GpuSchedule:
        quick = self.run(fast)
        tall = tuple(a for a in self.run(slow) if a not in quick)
        if not tall:  # a short run of one operand goes on along the other's: a filter's taps and channels
            tall, quick = (slow,), (fast,)
        rest = tuple(a for a in self.names if a not in (*tall, *quick))
        few = sum(isinstance(e, Load) for e in self.nest.body) <= 2  # or registers spill
        large = few and self.size(self.names) >= 128 * 128 * 4 * self.target.processors
        side = 32 if self.bytes() > 2 else 128 if large and min(self.size(tall), self.size(quick)) >= 128 else 64
        heights = [min(_power(self.size(a)), side) for a in (tall, quick)]
        blocks = (
            *((Block(rest, 1, "grid"),) if rest else ()),
            Block(tall, heights[0], "grid"),
            Block(quick, heights[1], "grid"),
        )
        warps = min(8, _warps(heights[0] * heights[1], 16))
        return GpuSchedule("pointwise", blocks, warps, 1, False, 0, self.approximate)

    def rows(self) -> GpuSchedule:
        """Reductions that hold the fast axis."""
        (inner,) = self.sets
        kept = self.ordered([a for a in self.names if a not in inner])
        width = self.size(inner)
        crossing = self.crossing(inner)
        outer = (Block(kept, 1, "grid"),) if kept else ()
        odd = self.unaligned(inner) and width >= _LONG
        if width > _HELD and self.known(inner) and not odd and (several := self.sharing(inner, kept, width)) > 1:
            loop = Block(self.ordered(inner), _SHARED_TILE // several, "loop")
            blocks = (Block(kept, several, "grid"), loop)
            return GpuSchedule("loops", blocks, 4, 3, False, 0, self.approximate, self.target.approximate)
        if (
            self.known(inner)
            and _power(width) * crossing <= _ROW
            and (width * 2 > _power(width) or width <= 4096)
            and not odd
            and (_power(width) <= 16384 or self.phases() > 1 or self.reads_once(inner))
        ):
            return self.whole_rows(inner, kept)
        chunk, warps = (4096, 8) if width >= 8192 else (2048, 4)
        row, phases, stages = width * self.bytes(), self.phases(), 3
        if phases > 1 and row > 32768 and row * self.target.processors < self.target.l2_bytes:
            # So few programs at once that a row's second reading meets it in the second-level cache. Reading ahead
            # costs more than it hides there (H100, softmax of 50257 columns: 390 us with 3 stages, 360 with 1).
            stages = 1
            chunk, warps = (8192, 32) if 2 * row * self.target.processors < self.target.l2_bytes else (16384, 32)
        if crossing > 2:
            chunk = min(chunk, 4096 if stages > 1 else 8192)
        if phases == 1 and any(e.op == "welford" for e in self.reduces):
            chunk = 2048
        if self.busy():
            chunk, warps, stages = _BUSY_POINTS, 4, 1
        chunk = min(chunk, max(_power(width), 32))
        peel = 16 // self.narrowest() if odd and len(inner) == 1 else 0
        loop = Block(self.ordered(inner), chunk, "loop")
        found = GpuSchedule("loops", (*outer, loop), min(warps, _warps(chunk, 8)), stages, True, peel, self.approximate)
        return replace(found, approximate_sums=self.target.approximate)

    def whole_rows(self, inner: frozenset[str], kept: tuple[str, ...]) -> GpuSchedule:
        """Rows held in registers: several short ones a program, and several that are only summed over."""
        width, units = self.size(inner), self.size(kept)
        whole = Block(self.ordered(inner), max(_power(width), 2), "whole")
        each = 32
        alone = width <= _ONE_WARP and self.phases() > 1 and self.shares(inner)
        if alone:
            several = max(1, min(_ONE_WARP_POINTS // _power(width), _power(units // (self.target.processors * 4))))
        elif width <= 1024:
            tiles = sum(isinstance(e, Load) and len(e.index[0].axes()) > len(inner) for e in self.nest.body)
            most = min(4096, 8192 // max(tiles, 1)) // _power(width)
            several = max(1, min(1 << max(most, 1).bit_length() - 1, _power(units // (self.target.processors * 4))))
        else:
            several = self.sharing(inner, kept, _power(width))
            each = 64 if several > 1 or (width > _HELD and self.reads_once(inner) and self.moments()) else 32
        outer = (Block(kept, several, "grid"),) if kept else ()
        warps = max(_warps(_power(width) * several, each), 4 if several > 1 and not alone else 1)
        if units < self.target.processors:
            warps = max(warps, _warps(_power(width), 8))
        return GpuSchedule("rows", (*outer, whole), warps, 1, False, 0, self.approximate)

    def shares(self, inner: frozenset[str]) -> bool:
        """Whether rows have operands in common, a norm's weights."""
        return any(isinstance(e, Load) and e.index[0].axes() and e.index[0].axes() <= inner for e in self.nest.body)

    def sharing(self, inner: frozenset[str], kept: tuple[str, ...], width: int) -> int:
        """Rows of one program where it only sums over them, so that what all of them read is read less often.

        With one row a program, a product of a matrix and a vector takes as many bytes of the vector from the
        second-level cache as of the matrix from memory, and a norm's weights, residuals and factors on top.
        """
        shared = own = 0
        for eqn in self.nest.body:
            axes = eqn.index[0].axes() if isinstance(eqn, Load | Store) else frozenset[str]()
            if not axes & inner:
                continue
            size = DTYPES[self.dtypes[eqn.buffer]].size if isinstance(eqn, Load | Store) else 0
            if axes <= inner:
                shared += size if isinstance(eqn, Load) else 0
            elif isinstance(eqn, Store):
                return 1
            else:
                own += size
        several, units = 1, self.size(kept)
        if not self.known(kept) or own == 0:
            return 1
        while (
            several * own < 2 * shared
            and (width > _HELD or several * width < 2 * _HELD)
            and units % (2 * several) == 0
            and units >= 2 * several * 2 * self.target.processors
        ):
            several *= 2
        return several

    def phases(self) -> int:
        """How often a loop goes over a row whose values are not kept; a maximum and its sum count once."""
        phase: dict[str, int] = {}
        last = 0
        tops = {n for e in self.reduces if e.op == "max" for n in e.outs}
        for eqn in self.nest.body:
            when = max((phase[n] for n in operands(eqn) if n not in tops or isinstance(eqn, Store)), default=0)
            if isinstance(eqn, Reduce) or (isinstance(eqn, Store) and eqn.index[0].axes() & self.sets[0]):
                last = max(last, when)
            for name in defined(eqn):
                phase[name] = when + isinstance(eqn, Reduce)
        return last + 1

    def narrowest(self) -> int:
        """Bytes of the smallest element that varies over the fast axis."""
        sizes = [
            DTYPES[self.dtypes[e.buffer]].size
            for e in self.nest.body
            if isinstance(e, Load | Store) and self.fast in e.index[0].axes()
        ]
        return min(sizes, default=4)

    def unaligned(self, inner: frozenset[str]) -> bool:
        """Whether rows begin where 16-byte accesses cannot."""
        if not self.known(inner) or self.fast is None:
            return False
        return any(
            coef.is_int and coef.const * self.bytes() % 16 != 0
            for eqn in self.nest.body
            if isinstance(eqn, Load) and self.fast in eqn.index[0].axes()
            for name in eqn.index[0].axes() - {self.fast}
            if (coef := eqn.index[0].coefficient(self.axis[name])) is not None and name not in inner
        )

    def columns(self) -> GpuSchedule:
        """Reductions beside a fast axis that is kept."""
        (inner,) = self.sets
        run = self.run()
        rest = self.ordered([a for a in self.names if a not in inner and a not in run])
        deep, width = self.size(inner), self.size(run)
        outer = (Block(rest, 1, "grid"),) if rest else ()
        units = self.size(rest)
        across = min(_power(width), 1024)
        crossed = self.turned() is not None
        if deep <= _FEW and not crossed and units * -(-width // across) >= 2 * self.target.processors:
            blocks = (*outer, Block(self.ordered(inner), 1, "loop"), Block(run, across, "grid"))
            return GpuSchedule("columns", blocks, _warps(across, 4), 1, False, 0, self.approximate)
        narrow, single = self.bytes() > 2, self.reads_once(inner)
        most = 64 if narrow or units * -(-width // 128) < 3 * self.target.processors // 2 or width % 128 else 128
        if self.moments() or not single:
            most = COLUMNS
        across = min(_even(width) if len(run) > 1 else _power(width), most)
        written = any(isinstance(e, Store) and e.index[0].axes() & inner for e in self.nest.body)
        many = sum(isinstance(e, Load) and bool(e.index[0].axes() & inner) for e in self.nest.body)
        rows = rows_of_tile(many, written)
        points = 4096 if narrow or (written and crossed) else COLUMNS * rows
        held, tallest = (8192, 128) if crossed else (4096, 512)  # runs along both sides are to be wide
        if not (narrow or crossed or self.phases() > 1) and units * -(-width // across) >= self.target.processors:
            tallest = held // across  # a loop over wide runs hides more latency than a tall tile of narrow ones
        tall_run = max(8, held // _power(deep)) * self.bytes()
        if self.known(inner) and _power(deep) <= tallest and (tall_run >= _SECTORS or self.phases() > 1):
            across = min(across, 32 if narrow else 64, max(8, held // _power(deep)))
            tall = Block(self.ordered(inner), max(_power(deep), 2), "whole")
        else:
            tall = Block(self.ordered(inner), min(_power(deep), max(2, points // across)), "loop")
        if tall.role == "loop" and crossed:
            # What is read ahead waits in shared memory in its own order: turning it there meets one bank for a warp.
            tall, across = replace(tall, size=min(tall.size, 64)), min(across, 64)
            blocks = (*outer, tall, Block(run, across, "grid"))
            return GpuSchedule("columns", blocks, _warps(tall.size * across, 16), 1, False, 0, self.approximate)
        if tall.role == "loop" and self.busy():
            blocks = (*outer, replace(tall, size=max(2, _BUSY_POINTS // across)), Block(run, across, "grid"))
            return GpuSchedule("columns", blocks, _warps(_BUSY_POINTS, 8), 1, False, 0, self.approximate)
        plenty = width % _SIDE == 0 and units * width >= 3 * self.target.processors * _SIDE
        if tall.role == "loop" and plenty and single and not narrow:
            # Short tiles of wide runs: a thread has few sums to join with others'.
            blocks = (*outer, replace(tall, size=8 if self.moments() else 16), Block(run, _SIDE, "grid"))
            return GpuSchedule("columns", blocks, 2, 4, False, 0, self.approximate)
        stages = 3 if tall.role == "loop" else 1
        blocks = (*outer, tall, Block(run, across, "grid"))
        # 64 points a thread keep its sums in registers and more reads in flight than 16 (H100: 101 us for 114).
        warps = _warps(tall.size * across, 16 if stages == 1 else max(16, points // 128))
        return GpuSchedule("columns", blocks, warps, stages, False, 0, self.approximate)

    def moments(self) -> bool:
        """Whether a tile is gone over twice for its mean and deviations: fewer warps then have less to wait for."""
        return any(e.op == "welford" for e in self.reduces)

    def reads_once(self, inner: frozenset[str]) -> bool:
        """Whether one operand is read and reduced, and nothing else is done with so many points."""
        large = [e for e in self.nest.body if isinstance(e, Load | Store) and e.index[0].axes() & inner]
        alone = len(large) == 1 and isinstance(large[0], Load)
        return alone and len(self.reduces) == 1 and self.phases() == 1

    def mixed(self) -> GpuSchedule:
        """Different axes reduced at once: blocks of axes that the same reductions take together."""
        groups: dict[tuple[bool, ...], list[str]] = {}
        for name in self.names:
            groups.setdefault(tuple(name in s for s in self.sets), []).append(name)
        inner = self.inner_set()
        blocks: list[Block] = []
        volume = 1
        for mark, names in groups.items():
            members = tuple(names)
            if not any(mark):
                blocks.append(Block(members, 1, "grid"))
            elif (
                inner is not None
                and mark[self.sets.index(inner)]
                and self.known(names)
                and (volume * _power(self.size(names)) <= 16384)
            ):
                blocks.append(Block(members, max(_power(self.size(names)), 2), "whole"))
                volume *= _power(self.size(names))
            else:
                blocks.append(Block(members, 0, "loop"))
        done = []
        crossed = self.turned() is not None
        sums = sum(frozenset(e.axes) != inner for e in self.reduces)  # each has a number of its own at every point
        points = 4096 if sums > 2 else 8192
        short = volume <= _SHORT_ROW and self.bytes() <= 2 and not crossed
        if short:
            points = volume * (2 if volume >= SHORT_ROW_WARP else 8)
        for block in blocks:
            if block.size == 0:
                block = replace(block, size=max(1, min(_power(self.size(block.axes)), points // volume, 32)))
            done.append(block)
        tile = volume * max((b.size for b in done if b.role == "loop"), default=1)
        done.sort(key=lambda b: (b.role != "grid", b.role != "loop"))
        stages = 3 if any(b.role == "loop" for b in done) and not crossed else 1
        return GpuSchedule(
            "mixed",
            tuple(done),
            short_row_warps(volume) if short else max(4, _warps(tile, 16 if crossed or sums > 2 else 32)),
            stages,
            False,
            0,
            self.approximate,
        )

    def inner_set(self) -> frozenset[str] | None:
        """The reduced axes that should be whole: those holding the fast axis, else the most used inside."""
        for found in self.sets:
            if self.fast in found:
                return found
        return min(self.sets, key=lambda s: self.size(s), default=None)

    def scan(self) -> GpuSchedule:
        (along,) = self.scanned
        length = self.size((along,))
        rest = self.ordered([a for a in self.names if a != along])
        if self.fast == along or not rest:
            outer = (Block(rest, 1, "grid"),) if rest else ()
            short = self.known([along]) and length <= 4096
            block = Block((along,), max(_power(length), 2), "whole") if short else Block((along,), 2048, "loop")
            return GpuSchedule("scan", (*outer, block), _warps(block.size, 8), 1, False, 0, self.approximate)
        assert self.fast is not None
        slow = self.ordered([a for a in rest if a != self.fast])
        across = min(_power(self.size((self.fast,))), 32)
        programs = self.size(slow) * -(-self.size((self.fast,)) // across)
        while across > 1 and 4 * programs <= self.target.processors:  # few columns: narrow accesses, but side by side
            across, programs = across // 2, 2 * programs
        high = min(_power(length), 64 if programs >= self.target.processors else max(64, 8192 // across))
        outer = (Block(slow, 1, "grid"),) if slow else ()
        blocks = (*outer, Block((along,), high, "loop"), Block((self.fast,), across, "grid"))
        return GpuSchedule("scan", blocks, _warps(high * across, 16), 1, False, 0, self.approximate)

    # ---- legality ---------------------------------------------------------------------------------------------------

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
