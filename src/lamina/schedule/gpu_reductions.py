"""How nests with reductions and scans are iterated on a GPU: rows, columns, both at once."""

from __future__ import annotations

from dataclasses import replace

from lamina.ir.loops import Load, Random, Store
from lamina.ir.plan import Block, GpuSchedule
from lamina.schedule.column_tiles import COLUMNS, rows_of_tile
from lamina.schedule.gpu_facts import (
    BUSY_POINTS,
    ENOUGH_WARPS,
    HELD,
    MANY_INSTRUCTIONS,
    MANY_POINTS,
    MANY_SUMS,
    MUCH,
    ROWS_IN_COMMON,
    SHORT_ROW_WARP,
    NestFacts,
    even_tile,
    filled,
    power,
    short_row_warps,
    warps_for,
)
from lamina.schedule.gpu_unaligned import broadcasts, columns_in_pieces, half_run_is_faster, read_in_pieces, side
from lamina.schedule.gpu_work import SECTOR
from lamina.schedule.scan_tiles import scan_schedule

__all__ = ["Reductions"]

_ROW = 32768
"""Points of a row that 32 warps hold in registers, 32 a thread."""
_FEW = 64
"""Reduced points up to which a loop over single points beats a second dimension of the tile."""
_ONE_WARP, _ONE_WARP_POINTS = 512, 1024
"""Widest rows with operands in common of which one warp takes several, and their points together. Several warps lay
such operands out anew through shared memory, and wait for each other (H100, layer norm with a bias before it: 25.4 us
for 50176 rows of 192 with four warps, 18.6 with one; 65.6 and 31.5 for 200704 of 96; 16.2 and 12.2 for 12544 of 384).
"""
_BESIDE, _BESIDE_WHOLE, _PROGRAMS = 512, 1024, 8
"""Points of a program's tile of short columns that it goes down, and of such that it holds whole; programs for each
processor that are enough (H100, float32: 3,072,000 pairs of three numbers beside each other, one a program, 1853 us,
four 466; 25,088 of 128, turned, with 64 points a program 65 us, with 256 in 33).
"""
_SHARED_TILE = 4096
"""Points of a tile of such rows where they are gone over in a loop."""
_SHORT_ROW = 1024
"""Points of a row of which several make a tile."""
_SHORT_TILE = 2048
"""Points of such a tile where one warp does not take whole rows (H200, four warps, tiles of 4096 points and 2048:
softmax of 1024 columns 70.9 us and 69.3, with its backward 167.7 and 164.7; layer norm of 1024 columns 23.2 and 22.4,
with its backward 58.9 and 57.5; of 768 columns 19.6 and 19.1).
"""
_MIXED_TILE = 4096
"""Points of a tile of 16-bit rows of more than ``_SHORT_ROW`` numbers whose columns are reduced too (H200, tiles of
4096 points and 8192: backward of layer norm with 4096 columns 109 us and 114, of RMS norm with residual 142 and 175,
with dropout and residual 186 and 191; with 2048 columns 31.5 and 33.0, 36.0 and 39.1, 35.1 and 38.0, 39.8 and 41.3).
"""
_NORM_ROW = 4096
"""Points of a norm's row of 16-bit numbers that two warps take, 64 a thread, or half as many (H200, one row a program;
four warps, two: layer norm 73.2 us, 72.6, its forward in training 74.0, 73.3; RMS norm 40.8, 39.2, with residual 135.9,
134.7 and 71.7, 69.8).
"""
_SIDE = 256
"""Columns of a program of two warps that only reads and reduces them (H200, 64 x 1024 x 2048 over its middle: variances
82 us with tiles of 64 x 128, 77 with 8 x 256; sums 77 and 75).
"""
_WARP_POINTS = 4096
"""Points of the rows that a warp holds where it takes many sums of each."""
_LONG = 2048
"""Row width from which unaligned rows are worth a loop with peeled ends."""
_BARELY = 0.75
"""Share of a larger tile's points that exist, over that of smaller ones, below which the smaller are taken."""


def _barely_filled(deep: int, rows: int) -> bool:
    """Whether much less of a tile that holds whole columns would exist than of tiles of ``rows`` rows."""
    return filled(deep, power(deep)) < _BARELY * filled(deep, max(2, rows))


def _points_of_held(instructions: float, tall: int) -> int:
    """Points of a thread in large tiles of columns that are held because they are used again: few warps have few
    results to exchange (H200, norm of 96 channels, 32 images: 128 x 32 in eight warps 93 us, 128 x 64 in two 52; with a
    gradient's 133 instructions 128 x 32 in 16 268, 128 x 64 in eight 120; 1024 x 16 of 39 instructions in eight 70).
    """
    return 32 if instructions >= MANY_INSTRUCTIONS else 128 if tall <= 128 else 64


def _rows_a_turn(length: int, most: int) -> int:
    """Rows that a loop takes at once: as many as ``most``, fewer where that leaves fewer beyond the last one (H200,
    five rows of 257 numbers, one at a time 675 us, two 1203; 56 rows, eight 257, 32 373).
    """
    sizes = [n for n in (1, 2, 4, 8, 16, 32) if n <= max(1, min(power(length), most))]
    return max(sizes, key=lambda n: (round(filled(length, n), 1), n))


class Reductions(NestFacts):
    """The kinds of schedules that reduce."""

    def rows(self) -> GpuSchedule:
        """Reductions that hold the fast axis."""
        (inner,) = self.sets
        kept = self.ordered([a for a in self.names if a not in inner])
        width = self.size(inner)
        crossing = self.crossing(inner)
        outer = (Block(kept, 1, "grid"),) if kept else ()
        odd = self.unaligned(inner) and width >= _LONG and not (width <= HELD and self.shifted(inner))
        many = self.reads > 1 or self.heavy()  # registers for few points of each are better spent on more threads
        if width > HELD and self.known(inner) and not odd and (several := self.sharing(inner, kept, width)) > 1:
            loop = Block(self.ordered(inner), _SHARED_TILE // several, "loop")
            blocks = (Block(kept, several, "grid"), loop)
            return GpuSchedule(
                "loops",
                blocks,
                warps=4,
                stages=3,
                approximate=self.approximate,
                approximate_sums=self.target.approximate,
            )
        if (
            self.known(inner)
            and power(width) * crossing <= _ROW
            and (width * 2 > power(width) or width <= 4096)
            and not odd
            and (power(width) <= (HELD if many else 2 * HELD) or self.phases() > 1 or self.reads_once(inner))
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
        if phases == 1 and (many or any(e.op == "welford" for e in self.reduces)):
            chunk = min(chunk, 2048)
        if self.busy():
            chunk, warps, stages = BUSY_POINTS, 4, 1
        elif broadcasts(self, inner):
            stages = 1
        elif read_in_pieces(self) and not (odd and len(inner) == 1):
            stages, warps = 1, warps_for(chunk, 8)  # (H100, 129 numbers a row, 336 MB: 536 us with 8 warps ahead, 257)
        if self.gathers():
            chunk, warps = BUSY_POINTS, 8
        chunk = min(chunk, max(power(width), 32))
        peel = 16 // self.narrowest() if odd and len(inner) == 1 else 0
        loop = Block(self.ordered(inner), chunk, "loop")
        found = GpuSchedule(
            "loops",
            (*outer, loop),
            warps=min(warps, warps_for(chunk, 8)),
            stages=stages,
            online=True,
            peel=peel,
            approximate=self.approximate,
        )
        return replace(found, approximate_sums=self.target.approximate)

    def whole_rows(self, inner: frozenset[str], kept: tuple[str, ...]) -> GpuSchedule:
        """Rows held in registers: several short ones a program, and several that are only summed over."""
        width, units = self.size(inner), self.size(kept)
        whole = Block(self.ordered(inner), max(power(width), 2), "whole")
        each = 32
        alone = width <= _ONE_WARP and self.phases() > 1 and self.shares(inner)
        if kept and power(width) <= _WARP_POINTS and self.many_sums(inner):
            # Sums of rows that a warp holds are joined by few exchanges, and what the rows have in common is read once.
            several = max(1, min(_WARP_POINTS // power(width), power(units // (self.target.processors * 8))))
            return GpuSchedule("rows", (Block(kept, several, "grid"), whole), warps=1, approximate=self.approximate)
        if alone:
            several = max(1, min(_ONE_WARP_POINTS // power(width), power(units // (self.target.processors * 4))))
        elif width <= 1024:
            tiles = sum(isinstance(e, Load) and len(e.index[0].axes()) > len(inner) for e in self.nest.body)
            most = min(_SHORT_TILE if width > _ONE_WARP else 4096, 8192 // max(tiles, 1)) // power(width)
            several = max(1, min(1 << max(most, 1).bit_length() - 1, power(units // (self.target.processors * 4))))
        else:
            several = self.sharing(inner, kept, power(width))
            alike = _NORM_ROW // 2 < width <= _NORM_ROW and self.bytes() <= 2 and self.only_sums()
            each = 64 if several > 1 or alike or (width > HELD and self.reads_once(inner) and self.moments()) else 32
        if self.instructions >= MUCH and self.bytes() > 2 and width <= _SHORT_ROW and not alone:
            # (H200, 14000 rows of 768, 89 instructions: two in four warps 83 us, one in two 54.)
            several, each = min(several, max(1, _SHORT_ROW // power(width))), 16
        if width >= _LONG and self.unaligned(inner) and self.shifted(inner):
            each = 16  # every point takes narrow accesses: as many as possible are to be under way
        outer = (Block(kept, several, "grid"),) if kept else ()
        warps = max(warps_for(power(width) * several, each), 4 if several > 1 and not alone else 1)
        if units < self.target.processors:
            warps = max(warps, warps_for(power(width), 8))
        return GpuSchedule("rows", (*outer, whole), warps=warps, approximate=self.approximate)

    def only_sums(self) -> bool:
        """Whether all that rows are reduced to are sums and moments, and no random numbers are drawn for them."""
        drawn = any(isinstance(e, Random) for e in self.nest.body)
        return not drawn and all(e.op in ("sum", "welford") for e in self.reduces)

    def many_sums(self, inner: frozenset[str]) -> bool:
        """Whether rows of one operand are only read, each for many sums with operands that all rows have in common."""
        large = [e for e in self.nest.body if isinstance(e, Load | Store) and e.index[0].axes() & inner]
        own = [e for e in large if not e.index[0].axes() <= inner]
        once = len(own) == 1 and isinstance(own[0], Load) and self.phases() == 1
        return once and len(self.reduces) >= MANY_SUMS and self.in_common(inner)

    def columns(self) -> GpuSchedule:  # noqa: C901
        """Reductions beside a fast axis that is kept."""
        (inner,) = self.sets
        run = self.run()
        rest = self.ordered([a for a in self.names if a not in inner and a not in run])
        deep, width = self.size(inner), self.size(run)
        outer = (Block(rest, 1, "grid"),) if rest else ()
        units = self.size(rest)
        across = min(power(width), 1024)
        other = self.transposed_axes()
        crossed = other is not None
        if deep <= _FEW and not crossed and units * -(-width // across) >= 2 * self.target.processors:
            rows = self.rows_beside(rest, width, across, _BESIDE)
            if self.few_terms(run) and units % ROWS_IN_COMMON == 0 and units * width >= MANY_POINTS:
                rows = ROWS_IN_COMMON
            outer = (Block(rest, rows, "grid"),) if rest else ()
            blocks = (*outer, Block(self.ordered(inner), 1, "loop"), Block(run, across, "grid"))
            each, programs = 4, -(-units // rows) * -(-width // across)
            enough = ENOUGH_WARPS * self.target.processors
            while self.heavy() and each > 1 and programs * warps_for(rows * across, each) < enough:
                each //= 2  # more threads hide what each of them waits for
            return GpuSchedule("columns", blocks, warps=warps_for(rows * across, each), approximate=self.approximate)
        narrow, single = self.bytes() > 2, self.reads_once(inner)
        most = 64 if narrow or units * -(-width // 128) < 3 * self.target.processors // 2 or width % 128 else 128
        if self.moments() or not single:
            most = COLUMNS
        across = min(even_tile(width) if len(run) > 1 else power(width), most)
        written = any(isinstance(e, Store) and e.index[0].axes() & inner for e in self.nest.body)
        many = sum(isinstance(e, Load) and bool(e.index[0].axes() & inner) for e in self.nest.body)
        rows = rows_of_tile(many, written)
        points = 4096 if narrow or (written and crossed) else COLUMNS * rows
        again, rows = self.phases() > 1, 1
        held, tallest = (8192, 128) if crossed else (8192 if again else 4096, 512)  # runs of both sides are to be wide
        if not (narrow or crossed or self.phases() > 1) and units * -(-width // across) >= self.target.processors:
            tallest = held // across  # a loop over wide runs hides more latency than a tall tile of narrow ones
        tall_run = max(8, held // power(deep)) * self.bytes()
        if again and narrow and not crossed:
            tallest = 1024  # H100, log-softmax over 597 of 64 columns: 156 us in tiles of 64, 117 held
        # So many operands, or sums, leave no registers for a tall tile of each.
        loops = not again and (self.busy() or len(self.reduces) >= MANY_SUMS)
        other_way = again or crossed or loops or deep <= _FEW or len(self.reduces) >= MANY_SUMS
        if not other_way and read_in_pieces(self):
            return columns_in_pieces(self, outer, inner, run)
        if not (again or crossed or self.unaligned(frozenset())) and _barely_filled(deep, points // across):
            loops = True
            few = units * -(-width // across) < 2 * self.target.processors
            if narrow and (few or half_run_is_faster(width, across)):
                across, points = across // 2, points // 2
        if self.known(inner) and power(deep) <= tallest and (tall_run >= SECTOR or again) and not loops:
            across = min(across, 32 if narrow else 64, max(16 if again else 8, held // power(deep)))
            tall = Block(self.ordered(inner), max(power(deep), 2), "whole")
            # What much is computed of had better not be turned in a large tile; small ones fill a program of few warps,
            # of which a processor holds 32 (H100, 39,270 times 12 x 12: one in one warp 156 us, four in four 104).
            if not (crossed and self.heavy()) or tall.size * across <= 256:
                rows = self.rows_beside(rest, width, across, _BESIDE_WHOLE // tall.size)
            if rows > 1 and other is not None and other[0] in rest:
                beside = tuple(a for a in rest if a != other[0])
                rows = min(rows, power(self.size(other[:1])))
                outer = (*((Block(beside, 1, "grid"),) if beside else ()), Block(other[:1], rows, "grid"))
            elif rows > 1:
                outer = (Block(rest, rows, "grid"),)
        else:
            tall = Block(self.ordered(inner), min(power(deep), max(2, points // across)), "loop")
        if tall.role == "loop" and crossed:
            # What is read ahead waits in shared memory in its own order: turning it there meets one bank for a warp.
            # (H100, 510 times 462 rows of 12 numbers: 64 rows in two warps 193 us, in four 173, 128 in eight 153.)
            tall, across = replace(tall, size=min(tall.size, max(64, 2048 // across))), min(across, 64)
            blocks, each = (*outer, tall, Block(run, across, "grid")), 16
            programs, enough = units * -(-width // across), ENOUGH_WARPS * self.target.processors
            while self.heavy() and each > 4 and programs * warps_for(tall.size * across, each) < enough:
                each //= 2
            warps = warps_for(tall.size * across, each)
            return GpuSchedule("columns", blocks, warps=warps, approximate=self.approximate)
        if tall.role == "loop" and self.busy():
            across = min(across, side(width)) if narrow else across
            blocks = (*outer, replace(tall, size=max(2, BUSY_POINTS // across)), Block(run, across, "grid"))
            return GpuSchedule("columns", blocks, warps=warps_for(BUSY_POINTS, 8), approximate=self.approximate)
        if tall.role == "loop" and len(self.reduces) >= MANY_SUMS:
            # A thread keeps a share of every sum, in 64 registers; its rows are a power of two, as those of all tiles.
            share = max(4, power(64 // len(self.reduces) + 1) // 2)
            height = max(2, 128 * share // across)
            blocks = (*outer, replace(tall, size=min(tall.size, height)), Block(run, across, "grid"))
            return GpuSchedule("columns", blocks, warps=4, stages=4, approximate=self.approximate)
        plenty = width % _SIDE == 0 and units * width >= 3 * self.target.processors * _SIDE
        if tall.role == "loop" and plenty and single and not narrow:
            # Short tiles of wide runs: a thread has few sums to join with others'.
            blocks = (*outer, replace(tall, size=8 if self.moments() else 16), Block(run, _SIDE, "grid"))
            return GpuSchedule("columns", blocks, warps=2, stages=4, approximate=self.approximate)
        stages = 3 if tall.role == "loop" else 1
        blocks = (*outer, tall, Block(run, across, "grid"))
        # 64 points a thread keep its sums in registers and more reads in flight than 16 (H100: 101 us for 114), and few
        # warps have few sums to join where a tile is turned (H200, 64 x 784 x 192: 32 us with four, 59 with sixteen).
        each = 64 if crossed else 16 if stages == 1 else max(16, points // 128)
        if rows > 1 or (self.heavy() and not crossed and tall.size <= 512):
            each = 8
        if again and not crossed and rows * tall.size * across >= held:
            each = _points_of_held(self.instructions, tall.size)
        warps = warps_for(rows * tall.size * across, each)
        return GpuSchedule("columns", blocks, warps=warps, stages=stages, approximate=self.approximate)

    def rows_beside(self, rest: tuple[str, ...], width: int, across: int, points: int) -> int:
        """How many rows of columns a program takes to have ``points`` of them, where enough programs are left."""
        programs = self.size(rest) * -(-width // across) // (_PROGRAMS * self.target.processors)
        return 1 if not rest else max(1, min(points // across, 1 << max(programs, 1).bit_length() - 1))

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
                and (volume * power(self.size(names)) <= 16384)
            ):
                blocks.append(Block(members, max(power(self.size(names)), 2), "whole"))
                volume *= power(self.size(names))
            else:
                blocks.append(Block(members, 0, "loop"))
        crossed = self.transposed_axes() is not None
        sums = sum(frozenset(e.axes) != inner for e in self.reduces)  # each has a number of its own at every point
        points = _MIXED_TILE if sums > 2 or (self.bytes() <= 2 and not crossed) else 2 * _MIXED_TILE
        much = self.instructions >= MANY_INSTRUCTIONS and self.bytes() > 2
        if much and not crossed:
            points = 2 * BUSY_POINTS
        short = volume <= _SHORT_ROW and self.bytes() <= 2 and not crossed
        if short:  # two rows a turn, which a thread adds up at once, or as many as its warps read at once
            points = volume * (2 if volume >= SHORT_ROW_WARP else 8)
        done = [b if b.size else replace(b, size=_rows_a_turn(self.size(b.axes), points // volume)) for b in blocks]
        tile = volume * max((b.size for b in done if b.role == "loop"), default=1)
        done.sort(key=lambda b: (b.role != "grid", b.role != "loop"))
        pieces = read_in_pieces(self)
        ahead = any(b.role == "loop" and b.size < self.size(b.axes) for b in done) and not crossed and not pieces
        each = 8 if much or pieces else 16 if crossed or sums > 2 else 32
        return GpuSchedule(
            "mixed",
            tuple(done),
            warps=short_row_warps(volume) if short else max(4, warps_for(tile, each)),
            stages=3 if ahead else 1,
            approximate=self.approximate,
        )

    def inner_set(self) -> frozenset[str] | None:
        """The reduced axes that should be whole: those holding the fast axis, else the most used inside."""
        for found in self.sets:
            if self.fast in found:
                return found
        return min(self.sets, key=lambda s: self.size(s), default=None)

    def scan(self) -> GpuSchedule:
        return scan_schedule(self)
