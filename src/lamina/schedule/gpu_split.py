"""Nests that would leave most of a GPU idle, cut into nests that do not.

A reduction over many points with few results is computed in two steps: programs reduce a part each and store it, then
a small nest joins the parts, always in the same order. A nest that reduces rows and columns at once, with rows too
wide for registers, becomes a nest for the rows and one for the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lamina.base.decision import Decision
from lamina.base.dtypes import DTYPES
from lamina.ir.index import Axis, Expr, as_expr, ceildiv
from lamina.ir.loops import (
    Buffer,
    Load,
    LoopProgram,
    Nest,
    Scan,
    Step,
    Store,
    defined,
    operands,
)
from lamina.schedule.axis_to_cut import ROW_POINTS
from lamina.schedule.column_tiles import COLUMNS, parts_of_columns, rows_of_tile
from lamina.schedule.gpu_cutting import ACROSS, COLUMN_POINTS, HALVES, MANY, SHORT, WIDEST
from lamina.schedule.gpu_facts import MANY_LOADS, short_row_warps
from lamina.schedule.gpu_partials import Cut
from lamina.schedule.gpu_passes import Passes
from lamina.schedule.gpu_scans import from_the_start, scan_in_parts
from lamina.schedule.gpu_target import GpuTarget
from lamina.schedule.gpu_updates import updates_apart
from lamina.schedule.gpu_work import computes, instructions, moved
from lamina.schedule.joined_axes import with_joined_axes
from lamina.schedule.memo import Memo
from lamina.schedule.predicated_loads import predicate_loads
from lamina.schedule.window_coarsening import coarsen_windows

__all__ = ["spread"]

_SHORT_ROW = 1024
"""Points of a row with which a processor holds more programs at once."""
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
_COLUMN_WAVES = 4
"""Programs for each processor that walk down columns and read ahead."""


def spread(program: LoopProgram, target: GpuTarget, memo: Memo | None = None) -> tuple[LoopProgram, list[Decision]]:
    """The program with its long reductions cut for the target; the same object where nothing changes.

    What is loaded for a few rows only is loaded under their condition (``predicate_loads``).
    """
    buffers, memo = program.buffer_map(), memo or Memo()
    decisions: list[Decision] = []
    steps: list[Step] = []
    for whole in program.steps:
        if not isinstance(whole, Nest):
            steps.append(whole)
            continue
        found = _spread(whole, buffers, target, memo)
        buffers |= found.buffers
        decisions += found.decisions
        steps += found.steps
    if not decisions and [*map(id, steps)] == [*map(id, program.steps)]:
        return program, []
    return replace(program, steps=tuple(steps), buffers=tuple(buffers.values())), decisions


@dataclass(frozen=True, slots=True)
class _Spread:
    """What became of a nest: the steps in its place, their new buffers by name, and why."""

    steps: list[Step]
    buffers: dict[str, Buffer]
    decisions: list[Decision]


def _spread(whole: Nest, buffers: Mapping[str, Buffer], target: GpuTarget, memo: Memo) -> _Spread:
    def made() -> _Spread:
        held, found = dict(buffers), _Spread([], {}, [])
        for own in updates_apart(coarsen_windows(predicate_loads(whole), held), found.decisions):
            apart = from_the_start(own, held, found.decisions)
            parts = scan_in_parts(apart, held, target, found.decisions)
            found.steps.extend(parts if len(parts) > 1 else _Cutter(apart, held, target, found.decisions).run())
        found.buffers.update((name, held[name]) for name in held if name not in buffers)
        return found

    return memo.of("spread", (whole,), made)  # new buffers are called after the nest: no other plan's have these names


class _Cutter(Passes):
    """Cuts one nest."""

    def run(self) -> list[Step]:
        """The nests that do the work of this one."""
        if not self.reduces or any(a.extent == 0 for a in self.nest.axes):
            return [self.nest]
        if any(isinstance(e, Scan) for e in self.body):
            return [self.nest]
        joined = with_joined_axes(self.nest, self.buffers)
        if joined is not self.nest:
            steps = _Cutter(joined, self.buffers, self.target, self.decisions).run()
            return [self.nest] if steps == [joined] else steps
        if len(self.sets) > 1:
            inner = self.inner()
            if (shared := self.shared(inner)) is not None:
                return self.again(shared)
            if self.volume(inner) > WIDEST:
                return self.again(self.unmixed(inner))
            others = [p for p in self.reduces if frozenset(self.reduce(p).axes) != inner]
            late = self.depending(set(others))  # a sum around a row's maximum needs that of the whole row, not a part's
            return self.parts([p for p in others if p not in late], inner)
        return self.parts(self.first(), frozenset())

    def again(self, nests: list[Nest]) -> list[Step]:
        """The nests, cut further where that helps."""
        return [s for n in nests for s in _Cutter(n, self.buffers, self.target, self.decisions).run()]

    # ---- rows and columns apart -------------------------------------------------------------------------------------

    def unmixed(self, inner: frozenset[str]) -> list[Nest]:
        """A nest for the reductions over ``inner`` and one for the others, which reads the results of the first."""
        own = {p for p in self.reduces if frozenset(self.reduce(p).axes) == inner}
        others = set(self.reduces) - own
        late = self.depending(others)
        outs = [n for p in sorted(own) if p not in late for n in defined(self.body[p])]
        second_goals = [p for p in self.goals() if p in late]
        early = [p for p in self.goals() if p not in late]
        second = self.rereading(second_goals, dict.fromkeys(outs), early)
        stores, loads = self.saved(self.needed(second, outs))
        first_goals = [*early, *(self.made[n] for n in loads)]
        first = self.slice(first_goals, {})
        self.decide("rows and columns apart", "the rows are too wide to keep in registers")
        return [
            self.nest_of("rows", self.nest.axes, [*first, *stores]),
            self.nest_of("columns", self.nest.axes, [*loads.values(), *second]),
        ]

    # ---- parts ------------------------------------------------------------------------------------------------------

    def parts(self, reduces: list[int], inner: frozenset[str]) -> list[Step]:
        """The nests with ``reduces`` computed in parts, where programs are too few otherwise."""
        if not reduces:
            return [self.nest]
        over = frozenset(self.reduce(reduces[0]).axes)
        cut = self.cut(over, inner, reduces)
        if cut is None:
            return [self.nest]
        held = self.holding(reduces)
        cutter = self if held is None else _Cutter(held, self.buffers, self.target, self.decisions)
        return cutter.in_parts(cut, reduces)

    def in_parts(self, cut: Cut, reduces: list[int]) -> list[Step]:
        """The nests with ``reduces`` computed in the parts of ``cut``."""
        over = frozenset(self.reduce(reduces[0]).axes)
        part = Axis(f"{cut.axis.name}_part", as_expr(cut.parts))
        rest = Axis(f"{cut.axis.name}_rest", cut.length)
        late = self.depending(set(reduces))
        late |= self.waiting_checks(reduces, late)
        early = [p for p in self.goals() if p not in late]
        outs = {n: p for p in reduces for n in defined(self.body[p])}
        stores, loads = self.partials(reduces, part, cut)
        first = self.partial_body([*reduces, *early], set(reduces), cut, part, rest)
        pair = (rest, part) if cut.dealt else (part, rest)
        axes = [x for a in self.nest.axes for x in (pair if a == cut.axis else (a,))]
        nests = [self.nest_of("parts", axes, [*first, *stores])]
        joined = [e for p in reduces for e in self.join(self.reduce(p), loads[p], part, cut)]
        remaining = self.rereading([p for p in self.goals() if p in late], outs, early)
        programs = cut.parts * self.size([a.name for a in cut.beside])
        runs = self.fast() in [a.name for a in cut.beside]
        why = "; the points of short contiguous runs apart, for wide accesses" if runs else ""
        why = "; neighbours of short contiguous runs apart, for wide accesses" if cut.dealt else why
        self.decide("in parts", f"{programs} programs for each result, joined in order{why}")
        kept = set(self.axes) - over
        if all(self.values[n] <= kept for e in remaining for n in (*defined(e), *operands(e))) and all(
            e.axes() <= kept for eqn in remaining if isinstance(eqn, Load | Store) for e in eqn.index
        ):
            nests.append(self.nest_of("join", [part, *self.nest.axes], [*joined, *remaining]))
            return self.again(nests) if cut.dealt else [nests[0], *self.again(nests[1:])]
        wanted = self.needed(remaining, outs)
        saves, back = self.saved(wanted)
        nests.append(self.nest_of("join", [part, *self.nest.axes], [*joined, *saves]))
        last = self.backwards(self.nest_of("rest", self.nest.axes, [*back.values(), *remaining]))
        return self.again([*nests, last]) if cut.dealt else [nests[0], *self.again([*nests[1:], last])]

    def cut(self, over: frozenset[str], inner: frozenset[str], reduces: list[int]) -> Cut | None:
        """Which reduced axis to cut and into how many parts; nothing where programs are enough."""
        enough = processors = self.target.processors
        kept = [a for a in self.axes if a not in over and a not in inner]
        points = self.size(over)
        if any(self.body[p].dtype in HALVES for p in reduces):  # type: ignore[union-attr]
            return None
        fast = self.fast()
        if not inner and fast in over and (narrow := self.narrow(fast, over, kept, reduces)) is not None:
            return narrow
        other = self.contiguous(kept)
        crossed = other is not None and self.contiguous(over) is not None
        if not inner and fast in over:
            fast = other or fast
        if inner:
            units, least, wanted = self.size(kept), 4, self.programs_of_rows(inner) * processors
        elif fast in over or fast is None:
            units, least, wanted = self.size(kept), ROW_POINTS, 4 * processors
            if self.waits(units) > _JOINING:
                enough = 4 * processors
        else:
            run = self.continued(fast, kept)
            if not crossed and (dealt := self.dealt(run, over, reduces)) is not None:
                return dealt
            units = self.size([a for a in kept if a not in run]) * -(-self.size(run) // ACROSS)
            least = COLUMN_POINTS
            # Many small programs a processor hide the latency of walking down columns; crossed, nothing is read ahead.
            enough = wanted = (_WAVES if crossed else _COLUMN_WAVES) * processors
            busy = len(self.large) >= MANY_LOADS
            if points <= _ONE_TILE:
                if self.waits(units) < _JOINING:
                    return None
                least //= 4
            if not crossed and not busy and (found := self.columns(over, run, kept)) is not None:
                return found
        parts = min(wanted // max(units, 1), points // least)
        along = fast is None or fast in over
        if along and not inner and not crossed and parts > 1 and 2 * units <= enough and (size := self.evicts(over)):
            # Programs of one tile each: none has to wait for the slowest of few, and all begin with reading.
            moments = any(self.reduce(p).op == "welford" for p in reduces)  # reads its tile again, from registers
            tiles = points // (_ROW_TILE // size // (2 if moments else 1))
            parts = max(parts, min(tiles, (2 if moments else 1) * _ROW_TILES // max(units, 1)))
            return self.axis_to_cut(over, parts, reduces, True)
        if len(self.first()) < len(self.reduces) and not inner:
            units *= 2  # each further phase reads everything again, from two kernels instead of one
        if crossed and len(reduces) > 1 and points >= 2 * _WHOLE_TILE:
            parts = max(parts, points // _WHOLE_TILE)
            units = 0  # sums of single tiles need no registers from one to the next
        if parts < 2 or units * 2 > enough:
            return None
        return self.axis_to_cut(over - inner, parts, reduces)

    def waits(self, units: int) -> float:
        """Microseconds for which processors without a program wait for those that have one more, of ``units``. Where
        memory bounds them all, one without any is missed, and one with fewer is not; few take more than their share.
        """
        processors, most = self.target.processors, float("inf")
        if computes(self.nest, self.buffers):
            needed = instructions(self.nest, self.buffers) / (_INSTRUCTIONS * processors)
        elif units < processors:
            needed, most = moved(self.nest, self.buffers) / (1e3 * self.target.copy_gbs), _SHARES
        else:
            return 0.0
        return needed * min(-(-units // processors) * processors / max(units, 1) - 1, most)

    def columns(self, over: frozenset[str], run: list[str], kept: list[str]) -> Cut | None:
        """The cut of one axis, reduced beside a contiguous one, where everything that is large has 16 bits."""
        (name, *others), width = over, self.size(run)
        large = [(e, o) for e, o in self.offsets if o.axes() & over]
        if others or width % COLUMNS or len(self.first()) < len(self.reduces) or self.stuck(self.axes[name]):
            return None
        known = all(a.extent.is_int for a in self.axes.values())
        if not known or any(DTYPES[self.buffers[e.buffer].dtype].size > 2 for e, _ in large):
            return None
        if any(self.reduce(p).op.startswith("arg") for p in self.reduces):
            return None
        rows = rows_of_tile(sum(isinstance(e, Load) for e, _ in large), any(isinstance(e, Store) for e, _ in large))
        tiles = self.size([a for a in kept if a not in run]) * width // COLUMNS
        extent = self.axes[name].extent
        parts = parts_of_columns(extent.const, tiles, rows, self.target.processors)
        return Cut(self.axes[name], parts, ceildiv(extent, parts)) if parts > 1 else None

    def programs_of_rows(self, inner: frozenset[str]) -> int:
        """Programs of a processor that reduce whole rows and, across them, columns."""
        volume = 1 << max(self.size(inner) - 1, 1).bit_length()
        if volume > _SHORT_ROW:
            large = [(e, o) for e, o in self.offsets if o.axes() & inner and o.axes() - inner]
            reads = all(isinstance(e, Load) for e, _ in large)
            return _READING_PROGRAMS if reads and self.evicted(large) else 2
        wide = any(DTYPES[e.dtype].size > 2 and o.axes() == set(self.axes) for e, o in self.loads)
        return 4 if wide else _ROW_WARPS // short_row_warps(volume)

    def evicts(self, over: frozenset[str]) -> int:
        """Bytes of a point of all operands where the nest only reads and reduces, once, more than a second-level cache
        holds; else 0.
        """
        large = [(e, o) for e, o in self.offsets if o.axes() & over]
        if len(self.first()) < len(self.reduces) or any(isinstance(e, Store) for e, _ in large):
            return 0
        return self.evicted(large)

    def evicted(self, large: Sequence[tuple[Load | Store, Expr]]) -> int:
        """Bytes of a point of these loads, together more than the second-level cache holds; else 0."""
        size = sum(DTYPES[e.dtype].size for e, _ in large if isinstance(e, Load))
        whole = all(o.axes() == set(self.axes) for _, o in large) and all(a.extent.is_int for a in self.axes.values())
        once = len({e.buffer for e, _ in large}) == len(large)
        return size if whole and once and self.size(self.axes) * size > self.target.l2_bytes else 0

    def narrow(self, fast: str, over: frozenset[str], kept: list[str], reduces: list[int]) -> Cut | None:
        """A cut that leaves every point of a short contiguous run a result of its own: channels of a group in
        channels-last memory. A program then reads the neighbouring groups' channels as well, in wide accesses.
        """
        run, slow = self.axes[fast], over - {fast}
        step = run.extent
        if not step.is_int or step.const >= SHORT or self.size(slow) < 2 * COLUMN_POINTS or self.size(self.axes) < MANY:
            return None
        if any(self.reduce(p).op.startswith("arg") or fast not in self.reduce(p).axes for p in reduces):
            return None
        beside = [a for a in kept if any(offset.coefficient(self.axes[a]) == step for _, offset in self.offsets)]
        if len(beside) != 1:
            return None
        width = step.const * self.size(beside)
        units = self.size([a for a in kept if a not in beside]) * -(-width // ACROSS)
        parts = min(_WAVES * self.target.processors // max(units, 1), self.size(slow) // COLUMN_POINTS)
        found = self.axis_to_cut(slow, max(parts, 1), reduces)
        return None if found is None else replace(found, beside=(run, *found.beside))
