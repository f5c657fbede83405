"""Whether a nest's reductions are cut for a GPU, along which axis and into how many parts: for enough programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lamina.base.dtypes import DTYPES
from lamina.base.target import Target
from lamina.ir.index import Expr, as_expr, ceildiv
from lamina.ir.loops import Buffer, Load, Store
from lamina.schedule.axis_to_cut import ROW_POINTS, AxisToCut
from lamina.schedule.column_tiles import COLUMNS, parts_of_columns, rows_of_tile
from lamina.schedule.gpu_cut_accesses import Accesses
from lamina.schedule.gpu_cutting import ACROSS, COLUMN_POINTS, HALVES, MANY, SHORT, NestToCut
from lamina.schedule.gpu_facts import MANY_LOADS, short_row_warps
from lamina.schedule.gpu_partials import Cut
from lamina.schedule.gpu_work import computes, instructions, moved

__all__ = ["CutChoice"]

_SHORT = 1024
"""Points of a row with which a processor holds more programs at once; of a column that few programs go through,
whatever they compute.
"""
_ROW_WARPS = 12
"""Warps of a processor that reduce short rows and columns across them (H200, layer norm's backward of 12608 rows of 768
with a sum beside: 113 us by 64 programs of 4 warps, 36 by 394, 29 by 788 of 2; 50176 rows of 192: 28.6 by 1568 of one).
"""
_READING_PROGRAMS = 8
"""Programs of a processor that reduce long rows and nothing else: two wait for memory longer than they use it."""
_ONE_TILE = 512
"""Points of columns that programs hold at once: such are done before a second launch would begin."""
_WHOLE_TILE = 128
"""Points of columns that programs reduce at once where operands are contiguous along different axes."""
_ROW_TILE, _ROW_TILES = 65536, 4096
"""Bytes of a row that a program reads at once, where it does nothing else and the last one joins them; its programs."""
_INSTRUCTIONS, _JOINING = 165e3, 4.0
"""Instructions of a processor's threads in a microsecond (``gpu_work``); microseconds that parts have to save: they are
stored, read again, and joined while nobody else works.
"""
_SHARES = 3.0
"""Shares of the bandwidth that a processor can use beside its own."""
_WAVES = 8
"""Programs for each processor that hide the latency of walking down columns."""
_COLUMN_WAVES, _BUSY_WAVES, _BUSY = 4, 12, 2.5
"""Programs for each processor that walk down columns and read ahead; and such as write what they read as well, and take
so many instructions or more for a byte (H200, a gradient with asinh and SiLU beside sums of 81,898 rows of 257, 2.9
instructions: 242 us by 4, 202 by 12; of an image resized, 7.7: 275, 248).
"""


@dataclass(frozen=True, slots=True)
class CutChoice:
    """Chooses how one nest is cut."""

    facts: NestToCut
    accesses: Accesses
    axis: AxisToCut
    target: Target
    buffers: Mapping[str, Buffer]

    def cut(self, over: frozenset[str], inner: frozenset[str], reduces: list[int]) -> Cut | None:
        """Which reduced axis to cut and into how many parts; nothing where programs are enough."""
        enough = processors = self.target.processors
        kept = [a for a in self.facts.axes if a not in over and a not in inner]
        points = self.facts.size(over)
        if any(self.facts.body[p].dtype in HALVES for p in reduces):  # type: ignore[union-attr]
            return None
        fast = self.accesses.fast()
        if not inner and fast in over and (found := self._apart(fast, over, kept, reduces)) is not None:
            return found
        other = self.accesses.contiguous(kept)
        crossed = other is not None and self.accesses.contiguous(over) is not None
        if not inner and fast in over:
            fast = other or fast
        if inner:
            units, least, wanted = self.facts.size(kept), 4, self._programs_of_rows(inner) * processors
            enough = self._enough_of_rows(wanted)
        elif fast in over or fast is None:
            units, least, wanted = self.facts.size(kept), ROW_POINTS, 4 * processors
            if self._waits(units) > _JOINING:
                enough = 4 * processors
        else:
            run = self.accesses.continued(fast, kept)
            if not crossed and (dealt := self.axis.dealt(run, over, reduces)) is not None:
                return dealt
            # Tiles of a short run go on along the other one's axis.
            short = 2 * self.facts.size(run) < ACROSS
            beside = [*run, other] if short and other is not None and other not in run else run
            units = self.facts.size([a for a in kept if a not in beside]) * -(-self.facts.size(beside) // ACROSS)
            least = COLUMN_POINTS
            # Many small programs a processor hide the latency of walking down columns; crossed, nothing is read ahead.
            enough = wanted = (_WAVES if crossed else self._waves(over)) * processors
            busy = len(self.accesses.large) >= MANY_LOADS
            if points <= _ONE_TILE:
                if self._waits(units) < _JOINING:
                    return None
                least //= 4
            if not crossed and not busy and (found := self._columns(over, run, kept)) is not None:
                return found
        parts = min(wanted // max(units, 1), points // least)
        along = fast is None or fast in over
        if along and not inner and not crossed and parts > 1 and 2 * units <= enough and (size := self._streams(over)):
            # Programs of one tile each: none has to wait for the slowest of few, and all begin with reading.
            moments = any(self.facts.reduce(p).op == "welford" for p in reduces)  # reads its tile again, from registers
            tiles = points // (_ROW_TILE // size // (2 if moments else 1))
            parts = max(parts, min(tiles, (2 if moments else 1) * _ROW_TILES // max(units, 1)))
            return self.axis.axis_to_cut(over, parts, reduces, True)
        if len(self.facts.first()) < len(self.facts.reduces) and not inner:
            units *= 2  # each further phase reads everything again, from two kernels instead of one
        if crossed and len(reduces) > 1 and points >= 2 * _WHOLE_TILE:
            parts = max(parts, points // _WHOLE_TILE)
            units = 0  # sums of single tiles need no registers from one to the next
        if parts < 2 or units * 2 > enough:
            return None
        return self.axis.axis_to_cut(over - inner, parts, reduces)

    def _waves(self, over: frozenset[str]) -> int:
        """Programs for each processor that walk down columns. Short columns ask for few, and so do numbers of 16 bits,
        two of a register, unless instructions take longer than memory.
        """
        nest, buffers = self.facts.nest, self.buffers
        if self.facts.size(over) <= _SHORT:
            return _COLUMN_WAVES
        if computes(nest, buffers):
            return _BUSY_WAVES
        wide = all(DTYPES[e.dtype].size >= 4 for e, _ in self.accesses.loads if e.dtype != "bool")
        writes = any(isinstance(e, Store) and o.axes() & over for e, o in self.accesses.offsets)
        busy = wide and writes and instructions(nest, buffers) >= _BUSY * moved(nest, buffers)
        return _BUSY_WAVES if busy else _COLUMN_WAVES

    def _apart(self, fast: str, over: frozenset[str], kept: list[str], reduces: list[int]) -> Cut | None:
        """A cut that leaves the points of the fast axis results of their own."""
        return self._turned(fast, over, reduces) or self._narrow(fast, over, kept, reduces)

    def _turned(self, fast: str, over: frozenset[str], reduces: list[int]) -> Cut | None:
        """Where operands are contiguous along two of the reduced axes: sums along one of them, in turned tiles, with
        the points of the others apart. A loop over both reads a sector for each number of some operands.
        """
        axes = self.facts.axes
        others = {a for o in self.accesses.large for a in over - {fast} if o.coefficient(axes[a]) == 1}
        if len(others) != 1 or any(not axes[a].extent.is_int or self.accesses.stuck(axes[a]) for a in over):
            return None
        found = [self.facts.reduce(p) for p in reduces]
        if any(e.op.startswith("arg") or not over <= set(e.axes) for e in found):
            return None
        if min(self.facts.size(others), self.facts.size((fast,))) < ACROSS // 2 or len(self.facts.reduces) > len(found):
            return None
        beside = tuple(axis for name, axis in axes.items() if name in over - others - {fast})
        programs = self.facts.size([a.name for a in beside]) * -(-self.facts.size((fast,)) // ACROSS)
        if programs < _COLUMN_WAVES * self.target.processors:
            return None
        return Cut(axes[fast], axes[fast].extent.const, as_expr(1), beside)

    def _waits(self, units: int) -> float:
        """Microseconds for which processors without a program wait for those that have one more, of ``units``. Where
        memory bounds them all, one without any is missed, and one with fewer is not; few take more than their share.
        """
        processors, most = self.target.processors, float("inf")
        if computes(self.facts.nest, self.buffers):
            needed = instructions(self.facts.nest, self.buffers) / (_INSTRUCTIONS * processors)
        elif units < processors:
            needed, most = moved(self.facts.nest, self.buffers) / (1e3 * self.target.copy_gbs), _SHARES
        else:
            return 0.0
        return needed * min(-(-units // processors) * processors / max(units, 1) - 1, most)

    def _columns(self, over: frozenset[str], run: list[str], kept: list[str]) -> Cut | None:
        """The cut of one axis, reduced beside a contiguous one, where everything that is large has 16 bits."""
        (name, *others), width = over, self.facts.size(run)
        large = [(e, o) for e, o in self.accesses.offsets if o.axes() & over]
        if others or width % COLUMNS or len(self.facts.first()) < len(self.facts.reduces):
            return None
        if self.accesses.stuck(self.facts.axes[name]):
            return None
        known = all(a.extent.is_int for a in self.facts.axes.values())
        if not known or any(DTYPES[self.buffers[e.buffer].dtype].size > 2 for e, _ in large):
            return None
        if any(self.facts.reduce(p).op.startswith("arg") for p in self.facts.reduces):
            return None
        rows = rows_of_tile(sum(isinstance(e, Load) for e, _ in large), any(isinstance(e, Store) for e, _ in large))
        tiles = self.facts.size([a for a in kept if a not in run]) * width // COLUMNS
        extent = self.facts.axes[name].extent
        parts = parts_of_columns(extent.const, tiles, rows, self.target.processors)
        return Cut(self.facts.axes[name], parts, ceildiv(extent, parts)) if parts > 1 else None

    def _programs_of_rows(self, inner: frozenset[str]) -> int:
        """Programs of a processor that reduce whole rows and, across them, columns."""
        volume = 1 << max(self.facts.size(inner) - 1, 1).bit_length()
        if volume > _SHORT:
            large = [(e, o) for e, o in self.accesses.offsets if o.axes() & inner and o.axes() - inner]
            reads = all(isinstance(e, Load) for e, _ in large)
            return _READING_PROGRAMS if reads and self._streamed(large) else 2
        wide = any(DTYPES[e.dtype].size > 2 and o.axes() == set(self.facts.axes) for e, o in self.accesses.loads)
        return 4 if wide else _ROW_WARPS // short_row_warps(volume)

    def _enough_of_rows(self, wanted: int) -> int:
        """Programs that are enough for rows and what is summed across them: one a processor where joining parts takes
        longer than the whole nest, else all that are ``wanted``. A program that goes through rows one after the other
        waits for memory in between.
        """
        whole = moved(self.facts.nest, self.buffers) / (1e3 * self.target.copy_gbs)
        return wanted if whole > 2 * _JOINING else self.target.processors

    def _streams(self, over: frozenset[str]) -> int:
        """Bytes of a point of all operands where the nest only reads and reduces, once, more than a second-level cache
        holds; else 0.
        """
        large = [(e, o) for e, o in self.accesses.offsets if o.axes() & over]
        if len(self.facts.first()) < len(self.facts.reduces) or any(isinstance(e, Store) for e, _ in large):
            return 0
        return self._streamed(large)

    def _streamed(self, large: Sequence[tuple[Load | Store, Expr]]) -> int:
        """Bytes of a point of these loads, together more than the second-level cache holds; else 0."""
        size = sum(DTYPES[e.dtype].size for e, _ in large if isinstance(e, Load))
        axes, once = self.facts.axes, len({e.buffer for e, _ in large}) == len(large)
        whole = all(o.axes() == set(axes) for _, o in large) and all(a.extent.is_int for a in axes.values())
        return size if whole and once and self.facts.size(self.facts.axes) * size > self.target.l2_bytes else 0

    def _narrow(self, fast: str, over: frozenset[str], kept: list[str], reduces: list[int]) -> Cut | None:
        """A cut that leaves every point of a short contiguous run a result of its own: channels of a group in
        channels-last memory. A program then reads the neighbouring groups' channels as well, in wide accesses.
        """
        run, slow = self.facts.axes[fast], over - {fast}
        step = run.extent
        if not step.is_int or step.const >= SHORT:
            return None
        if self.facts.size(slow) < 2 * COLUMN_POINTS or self.facts.size(self.facts.axes) < MANY:
            return None
        if any(self.facts.reduce(p).op.startswith("arg") or fast not in self.facts.reduce(p).axes for p in reduces):
            return None
        offsets = [offset for _, offset in self.accesses.offsets]
        beside = [a for a in kept if any(offset.coefficient(self.facts.axes[a]) == step for offset in offsets)]
        if len(beside) != 1:
            return None
        width = step.const * self.facts.size(beside)
        units = self.facts.size([a for a in kept if a not in beside]) * -(-width // ACROSS)
        parts = min(_WAVES * self.target.processors // max(units, 1), self.facts.size(slow) // COLUMN_POINTS)
        found = self.axis.axis_to_cut(slow, max(parts, 1), reduces)
        return None if found is None else replace(found, beside=(run, *found.beside))
