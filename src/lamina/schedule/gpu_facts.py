"""What a choice of schedules asks of a flat nest: sizes, runs of memory, how often values are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise

from lamina.base.dtypes import DTYPES
from lamina.base.target import Target
from lamina.ir.index import Expr, Loaded, prod
from lamina.ir.loops import Check, Load, Nest, Reduce, Scan, Store, axes_of_values, defined, operands
from lamina.ir.plan import Block
from lamina.schedule.accesses import gathers
from lamina.schedule.gpu_fast_axis import Run, fast_of, near_step
from lamina.schedule.gpu_work import instructions_of
from lamina.schedule.windows import slides

__all__ = [
    "BUSY_POINTS",
    "ENOUGH_WARPS",
    "HELD",
    "MANY_INSTRUCTIONS",
    "MANY_LOADS",
    "MANY_POINTS",
    "MANY_SUMS",
    "MUCH",
    "ROWS_IN_COMMON",
    "SHORT_ROW_WARP",
    "NestFacts",
    "even_tile",
    "fast_axis",
    "filled",
    "guess",
    "power",
    "short_row_warps",
    "warps_for",
]

MANY_LOADS = 8
"""Loads of large operands at a point from which on a thread takes one wide access of each: what is under way at once
are the loads, and their results fill the registers.
"""
_SEVERAL_LOADS, MANY_INSTRUCTIONS = 3, 40
"""Loads of large operands at a point, and its instructions, from which on threads take eight points instead of sixteen
(H100, bfloat16: two operands and 46 instructions 47.3 us with 2048 points in four warps, 38.7 with 1024; three and 32
37.8, 32.1; four and 104 27.1, 22.5; sums of rows over three operands, 23 instructions, 92 us with 4096 points in eight
warps, 73 with 2048; float32, three operands, 147 instructions, 185 us with 16 points a thread, 137 with eight).
"""
BUSY_POINTS = 1024
"""Points of a tile of such."""
MUCH = 60
"""Instructions at a point of turned tiles from which on a thread takes four (H100, 512 x 8 x 75 x 76 in bfloat16 with
149: 389 us with 16, 242 with four; 1000 x 9 x 2 x 768 in float32 with 60: 222 with eight, 196 with four).
"""
ENOUGH_WARPS = 16
"""Warps of a processor that hide what each of them waits for."""
_WINDOW_ROWS = 16
"""Rows of a window."""
_GUESS = 4096
"""What an unknown size counts as."""
_UPDATED = 6
"""Weight of a byte that is added to at a loaded place, where a load's is 2 and a store's 3: programs along rows of
what they add to meet in few sectors (H200, whole programs: 6 rows of 693,734 numbers 83 us before and 77 after, rows of
768 in tiles of both axes 602 and 548).
"""
_WIDE = 64
"""Elements of a run whose accesses are wide."""
_EVEN, _LEAST_EVEN, _FEW_BEYOND = 256, 64, 16
"""Points of a run of several axes of which a tile has several, most and fewest, and the share of a run that may lie
beyond its end.
"""
HELD = 8192
"""Points of a row up to which several rows that share operands are held whole."""
MANY_SUMS = 6
"""Sums of one nest that ask for tiles of their own: those of a thin product. (A norm's backward has four at most.)"""
_IN_COMMON = 6
"""Operands that neighbouring rows have in common from which on rows are taken together."""
ROWS_IN_COMMON = 4
"""Rows of such programs: a thread reads what they have in common once."""
MANY_POINTS = 1 << 20
"""Points that are worth as few programs as that leaves."""
SHORT_ROW_WARP = 256
"""Points that a warp reads in one wide access."""


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
    axis, values = {a.name: a for a in nest.axes}, axes_of_values(nest)
    runs: list[Run] = []
    near: list[Run] = []
    for eqn in nest.body:
        if isinstance(eqn, Load | Store):
            (expr,) = eqn.index
            names = expr.axes()
            weight = guess(prod(axis[a].extent for a in names)) * (3 if isinstance(eqn, Store) else 2)
            # From the last to the first element is as contiguous as from the first to the last.
            runs += [(names, name, weight) for name in names if expr.coefficient(axis[name]) in (1, -1)]
            if (along := near_step(expr, nest.axes)) is not None:
                near.append((names, along, weight))
            if isinstance(eqn, Store) and (placed := placed_along(eqn, values)) is not None:
                names |= {placed}
                runs.append((names, placed, guess(prod(axis[a].extent for a in names)) * _UPDATED))
    return fast_of(nest, runs, near) or (nest.axes[-1].name if nest.axes else None)


def placed_along(eqn: Store, values: Mapping[str, frozenset[str]]) -> str | None:
    """The axis along which an addition's places in its row are loaded: its neighbours meet in the same sectors."""
    (expr,) = eqn.index
    places = [a for a in expr.atoms() if isinstance(a, Loaded)]
    if eqn.mode == "set" or len(places) != 1 or expr.coefficient(places[0]) != 1:
        return None
    varies = values[places[0].name]
    return next(iter(varies)) if len(varies) == 1 and not varies & expr.axes() else None


def power(count: int) -> int:
    """The next power of two."""
    return 1 << max(count - 1, 0).bit_length()


def even_tile(width: int, points: int = _EVEN) -> int:
    """Points of a run that are worked on at a time: few of the last tile should be beyond its end.

    ``points``: those of a program's tile, which a run of that length fills alone.
    """
    most = points if width >= points else min(points, _EVEN)
    sizes = [n for n in (most >> k for k in range(most.bit_length())) if n >= _LEAST_EVEN] or [most]
    return min(sizes, key=lambda n: (max(-width % n - width // _FEW_BEYOND, 0), -n))


def filled(points: int, tile: int) -> float:
    """Share of the points of so long tiles that exist."""
    return points / (-(-points // tile) * tile)


def short_row_warps(volume: int) -> int:
    """Warps of a program that reduces rows of so many points and columns across them (a power of two, 1024 at most).

    Together they read one row of 16-bit numbers in one wide access each, so that a thread has the same columns of all
    rows and adds them up in few registers; two where a warp reads two rows or more at once.
    """
    return max(volume // SHORT_ROW_WARP, 1) if volume >= SHORT_ROW_WARP else 2


def warps_for(points: int, each: int = 32) -> int:
    """Warps that give every thread about ``each`` of a tile's points."""
    return max(1, min(32, power(-(-points // (32 * each)))))


class NestFacts:
    """Sizes and accesses of one nest."""

    def __init__(self, nest: Nest, dtypes: Mapping[str, str], target: Target) -> None:
        self.nest, self.dtypes, self.target = nest, dtypes, target
        self.axis = {a.name: a for a in nest.axes}
        self.names = list(self.axis)
        self.values = axes_of_values(nest)
        self.reduces = [e for e in nest.body if isinstance(e, Reduce)]
        self.sets = list(dict.fromkeys(frozenset(e.axes) for e in self.reduces))
        self.scanned = {e.axis for e in nest.body if isinstance(e, Scan)}
        self.fast = fast_axis(nest)
        self.approximate = target.approximate and self.rounds()

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

    def transposed_axes(self) -> tuple[str, str] | None:
        """Two axes that different large operands are contiguous along."""
        fast: set[str] = set()
        for eqn in self.nest.body:
            if not isinstance(eqn, Load | Store):
                continue
            (expr,) = eqn.index
            places = frozenset[str]().union(*(self.values[a.name] for a in expr.atoms() if isinstance(a, Loaded)))
            axes = expr.axes() | places
            if self.size(axes) * 8 < self.size(self.names):
                continue
            # Rows whose places are loaded are contiguous along their own points only.
            runs = [a for a in expr.axes() - places if expr.coefficient(self.axis[a]) == 1 and self.size((a,)) >= 8]
            if isinstance(eqn, Store) and (placed := placed_along(eqn, self.values)) and self.size((placed,)) >= 8:
                runs = [placed]
            if len(runs) == 1 and len(axes) > 1:
                fast.add(runs[0])
        if len(fast) != 2 or self.fast not in fast:
            return None
        (other,) = fast - {self.fast}
        return other, self.fast

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

    def shifted(self, inner: frozenset[str]) -> bool:
        """Whether rows are read at two places so far apart that no beginning of a tile suits both."""
        found: dict[str, list[Expr]] = {}
        for eqn in self.nest.body:
            if isinstance(eqn, Load) and eqn.index[0].axes() & inner:
                found.setdefault(eqn.buffer, []).append(eqn.index[0])
        apart = [one - other for places in found.values() for one, other in pairwise(places)]
        return any(not gap.terms and gap.const * self.bytes() % 16 for gap in apart)

    def moments(self) -> bool:
        """Whether a tile is gone over twice for its mean and deviations: fewer warps then have less to wait for."""
        return any(e.op == "welford" for e in self.reduces)

    def reads_once(self, inner: frozenset[str]) -> bool:
        """Whether one operand is read and reduced, and nothing else is done with so many points."""
        large = [e for e in self.nest.body if isinstance(e, Load | Store) and e.index[0].axes() & inner]
        alone = len(large) == 1 and isinstance(large[0], Load)
        return alone and len(self.reduces) == 1 and self.phases() == 1

    def busy(self) -> bool:
        """Whether every point reads much."""
        return self.reads >= MANY_LOADS

    @cached_property
    def instructions(self) -> float:
        """Instructions at a point, of values that vary over about as many points as there are."""
        whole = self.size(self.names)
        made = [e for e in self.nest.body if not isinstance(e, Store | Check)]
        return sum(instructions_of(e) for e in made if self.size(self.values[defined(e)[0]]) * 8 >= whole)

    @cached_property
    def reads(self) -> int:
        """Large operands of a point."""
        whole = self.size(self.names)
        return sum(self.size(e.index[0].axes()) * 8 >= whole for e in self.nest.body if isinstance(e, Load))

    def heavy(self) -> bool:
        """Whether a point takes so many instructions or operands that threads had better take few points: more threads
        hide what each of them waits for.
        """
        return self.instructions >= MANY_INSTRUCTIONS or self.reads >= _SEVERAL_LOADS

    def gathers(self) -> bool:
        """Whether elements are read at places that are loaded, each a sector of memory that threads wait for (H100, two
        of 18.8 M at random places, added up: 3975 us in tiles of 4096 points for eight warps, 1188 in tiles of 1024).
        """
        loads = [e for e in self.nest.body if isinstance(e, Load) and gathers(e)]
        return any(all(e.index[0].coefficient(a) != 1 for a in self.nest.axes) for e in loads)

    def slides(self) -> bool:
        """Whether what is reduced are a few rows of windows."""
        (inner,) = self.sets
        if len(inner) != 1 or self.fast in inner or not 1 < self.size(inner) <= _WINDOW_ROWS:
            return False
        (row,) = inner
        return any(slides(eqn, self.axis[row]) for eqn in self.nest.body)

    def changes_little(self) -> bool:
        """Whether everything is stored under conditions that are loaded once for many points: programs rarely store."""
        masks = {e.mask for e in self.nest.body if isinstance(e, Store)}
        if None in masks or self.fast is None:
            return False
        loads = [e.index[0].axes() for e in self.nest.body if isinstance(e, Load)]
        return all(self.size(axes) * 8 <= self.size(self.names) for axes in loads)

    def shares(self, inner: frozenset[str]) -> bool:
        """Whether rows have operands in common, a norm's weights."""
        return any(isinstance(e, Load) and e.index[0].axes() and e.index[0].axes() <= inner for e in self.nest.body)

    def in_common(self, run: frozenset[str]) -> bool:
        """Whether rows along ``run`` have many operands in common."""
        loads = [self.values[e.out] for e in self.nest.body if isinstance(e, Load)]
        return sum(bool(axes) and axes <= run for axes in loads) >= _IN_COMMON

    def few_terms(self, run: tuple[str, ...]) -> bool:
        """Whether rows along ``run`` are multiplied with many of each row's numbers: a product with few terms."""
        loads = [self.values[e.out] for e in self.nest.body if isinstance(e, Load)]
        factors = sum(bool(axes) and not axes & set(run) for axes in loads)
        return factors >= _IN_COMMON and self.in_common(frozenset(run))

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
            and (width > HELD or several * width < 2 * HELD)
            and units % (2 * several) == 0
            and units >= 2 * several * 2 * self.target.processors
        ):
            several *= 2
        return several
