"""Which schedules of a nest are worth timing on a CPU: steps away from the one that is used when nothing is measured.

Another vector axis or another axis that threads share is a step, and so are other tiles, another order of the outer
axes, one thread, more or fewer vectors at a time, what a row keeps, and whether stores go past the caches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from lamina.base.dtypes import DTYPES
from lamina.base.target import Target
from lamina.ir.loops import Load, Nest, Reduce, Scan, Store, operands
from lamina.ir.plan import Schedule
from lamina.schedule.cpu_cost import CostModel
from lamina.schedule.gpu_facts import guess
from lamina.schedule.tile import Chooser

__all__ = ["MOST", "Ranked", "candidates", "choose", "label_of", "on_one_thread"]

MOST = 8
"""Schedules of one kernel that are timed at most, the model's own included."""
_SHORT = 16
"""Points of a vector axis from which on the model is not asked for another one."""
_SURE = 1.35
"""How many times as long as beside another vector axis the rules' schedule must be expected to take to be dropped."""
_HOPELESS = 4.0
"""Candidates that the model expects to take so many times as long as the first are not offered."""
_TRANSPOSED_TILES = ((32, 32), (16, 64), (64, 16), (64, 128), (128, 64))
"""Sides of tiles in which operands are transposed; each is on a thread's stack."""
_COLUMNS = (64, 256, 512, 1024, 2048, 4096)
_UNROLLS = (1, 2, 4, 8)
_CHEAP = 3
"""Instructions from which on a value that a later phase needs again may be kept."""
_ALONE = 1 << 40
"""More points than any kernel has: one thread does all."""
_FEW = 16
"""Around so many times the points that start other threads, the model does not know whether they pay."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A schedule and the microseconds that the model expects."""

    schedule: Schedule
    microseconds: float


def choose(nest: Nest, dtypes: Mapping[str, str], target: Target) -> Schedule:
    """The schedule to use when nothing is measured: that of the rules, or beside another vector axis where theirs is
    short and the cost model is sure that the other is better.
    """
    first = Chooser(nest, dtypes, target).schedule()
    if first.vector is None or len(nest.axes) < 2 or not all(a.extent.is_int for a in nest.axes):
        return first
    lengths = {a.name: a.extent.const for a in nest.axes}
    if lengths[first.vector] >= _SHORT or not _reduces_at_last(nest):
        return first  # a reduction beside another axis may use a point of a loop that it is not in
    space = _Space(nest, dtypes, target, lengths, first)
    others = [] if space.ordered else list(space.beside())
    if not others:
        return first
    cost = CostModel(nest, dtypes, target, space.lengths)
    found = {schedule: cost(schedule) for schedule in (first, *others)}
    best = min(found, key=lambda schedule: found[schedule])
    return best if found[first] >= _SURE * found[best] else first


def _reduces_at_last(nest: Nest) -> bool:
    """Whether the nest has no scans, and all reductions go over the same axes and are stored as they are."""
    reduces = [eqn for eqn in nest.body if isinstance(eqn, Reduce)]
    outs = {name for eqn in reduces for name in eqn.outs}
    ended = all(isinstance(eqn, Store) or outs.isdisjoint(operands(eqn)) for eqn in nest.body)
    return ended and len({frozenset(e.axes) for e in reduces}) <= 1 and not any(isinstance(e, Scan) for e in nest.body)


def candidates(
    nest: Nest,
    dtypes: Mapping[str, str],
    target: Target,
    lengths: Mapping[str, int] | None = None,
    most: int = MOST,
    exact: bool = False,
) -> list[Ranked]:
    """Up to ``most`` schedules: the one used when nothing is measured first, the others by what the model expects.

    ``dtypes`` gives each flat buffer's element type, ``lengths`` each axis its length where it is known better than
    the nest knows it. ``exact``: only such that round as the first one does, bit for bit.
    """
    sizes = {a.name: guess(a.extent) for a in nest.axes} | dict(lengths or {})
    cost = CostModel(nest, dtypes, target, sizes)
    space = _Space(nest, dtypes, target, sizes, choose(nest, dtypes, target), exact)
    space.written = sum(cost.touched(e) for e in space.stored)
    first = space.first
    found = {first: cost(first)}
    shapes = [first, *(s for s in dict.fromkeys(space.shapes()) if s != first)]
    found.update({s: cost(s) for s in shapes if s not in found})
    near = sorted(shapes[1:], key=lambda s: found[s])[:2]
    for shape in (first, *near):
        for schedule in space.near(shape):
            if schedule not in found:
                found[schedule] = cost(schedule)
    rest = [s for s in found if s != first and found[s] <= _HOPELESS * found[first]]
    rest.sort(key=lambda s: found[s])
    chosen = _varied(first, rest)[: most - 1]
    alone = on_one_thread(first)
    if alone in found and alone not in chosen and most > 1:
        chosen = [*chosen[: most - 2], alone]
    return [Ranked(s, found[s]) for s in (first, *chosen)]


def on_one_thread(schedule: Schedule) -> Schedule:
    """The same loops, none of them shared. It is always timed where threads share: it tells whether they can run."""
    return replace(schedule, parallel=_ALONE)


def _varied(first: Schedule, ranked: list[Schedule]) -> list[Schedule]:
    """Those ranked best of each kind of step in turns: what the model says of one step tells little of another."""
    steps: dict[object, list[Schedule]] = {}
    for schedule in ranked:
        steps.setdefault(_step(first, schedule), []).append(schedule)
    found: list[Schedule] = []
    while any(steps.values()):
        found += [row.pop(0) for row in steps.values() if row]
    return found


def _step(first: Schedule, other: Schedule) -> object:
    shape = (first.kind, first.outer, first.vector) == (other.kind, other.outer, other.vector)
    if not shape:
        return "shape"
    names = ("tile", "kept", "parallel", "prefetch", "unroll", "nontemporal")
    return next((name for name in names if getattr(first, name) != getattr(other, name)), "")


class _Space:
    """The schedules around the first one of a nest."""

    def __init__(
        self,
        nest: Nest,
        dtypes: Mapping[str, str],
        target: Target,
        lengths: Mapping[str, int],
        first: Schedule,
        exact: bool = False,
    ) -> None:
        self.nest, self.dtypes, self.target, self.lengths, self.exact = nest, dtypes, target, lengths, exact
        self.first = first
        self.chooser = Chooser(nest, dtypes, target)
        stores = [e for e in nest.body if isinstance(e, Store)]
        loaded = {e.buffer for e in nest.body if isinstance(e, Load)}
        sums = [e for e in nest.body if isinstance(e, Reduce | Scan) and DTYPES[e.dtype].is_float]
        adds = [e for e in stores if e.mode == "add"]
        # The last of several stores to a place counts, and what is read must not have been overwritten.
        self.ordered = any(e.buffer in loaded or (e.mode == "set" and self.repeats(e)) for e in stores)
        self.sums = bool(sums) or any(DTYPES[dtypes[e.buffer]].is_float for e in adds)
        self.stored = [e for e in stores if e.mode == "set" and e.buffer not in loaded]
        self.written = 0
        self.folding = any(isinstance(e, Reduce) for e in nest.body)
        self.total = 1
        for size in lengths.values():
            self.total *= size

    def repeats(self, eqn: Store) -> bool:
        """Whether a store may write one place twice."""
        over = frozenset(eqn.index[0].axes()).union(*(self.chooser.values[name] for name in operands(eqn)))
        return self.chooser.collides(eqn, over)

    def shapes(self) -> Iterator[Schedule]:
        """Other vector axes, axes that threads share, and orders of loops."""
        if self.ordered or (self.exact and self.sums):
            return
        for base in (self.first, *self.beside()):
            yield base
            yield from self.kinds(base)
        yield from self.orders(self.first)

    def beside(self) -> Iterator[Schedule]:
        """The rules' schedules beside other vector axes."""
        for axis, score in self.chooser.scores().items():
            if axis != self.first.vector and score and self.lengths[axis] >= 3:
                yield Chooser(self.nest, self.dtypes, self.target, axis).schedule()

    def kinds(self, base: Schedule) -> Iterator[Schedule]:
        """Reductions shared by threads or done inside, where both are possible."""
        chooser = self.chooser
        if not chooser.reduces or chooser.scanned or chooser.scatters():
            return
        free = tuple(a for a in chooser.names if not any(a in r for r in chooser.reduces))
        if base.vector not in free or chooser.one_pass():
            yield from chooser.sharings(base.vector, base.width)
        if base.vector not in free and free:
            yield chooser.rows("rows", free, base.vector, base.width)
        if base.vector in free and base.kind == "mixed":
            outer = tuple(a for a in free if a != base.vector)
            inner = tuple(chooser.ordered([a for a in chooser.names if a not in outer], base.vector))
            for size in self.tiles(base.vector or ""):
                tile = ((base.vector or "", size),)
                kept = chooser.kept(inner, tile=tile)
                yield replace(base, kind="columns", outer=outer, inner=inner, kept=kept, tile=tile)

    def orders(self, base: Schedule) -> Iterator[Schedule]:
        """Each of the outer axes innermost, where nothing is reduced."""
        if base.kind == "pointwise" and not base.tile and not self.folding and base.vector not in base.outer:
            for axis in base.outer[:-1]:
                if self.lengths[axis] > 1:
                    yield replace(base, outer=(*(a for a in base.outer if a != axis), axis))

    def near(self, base: Schedule) -> Iterator[Schedule]:
        """Steps that leave the shape of the loops as it is."""
        free = not (self.exact and self.sums)
        if not self.ordered:
            yield from self.tiled(base)
        if base.width and (free or not self.folding):
            for count in _UNROLLS[0 if self.folding else 1 : 4 if self.folding else 3]:
                yield replace(base, unroll=count)
        if self.folding and base.kind in ("rows", "columns", "mixed"):
            for kept in ((), *(self.chooser.kept(base.inner, least, base.tile) for least in (None, _CHEAP))):
                yield replace(base, kept=kept)
        if base.kind == "rows" and base.outer and self.chooser.phases() > 1:
            yield replace(base, prefetch=not base.prefetch)
        if (free or base.kind != "mixed") and self.target.processors > 1 and base.kind != "serial":
            if base.parallel <= self.total <= _FEW * base.parallel or (
                base == self.first and base.parallel <= self.total
            ):
                yield on_one_thread(base)
            elif base.parallel // _FEW <= self.total < base.parallel:
                yield replace(base, parallel=0)
        if base.width and 2 * self.written >= self.target.llc_bytes and not base.nontemporal:
            yield replace(base, nontemporal=True)

    def tiled(self, base: Schedule) -> Iterator[Schedule]:
        """Other tiles of the same axes."""
        axes = [axis for axis, _ in base.tile]
        if base.kind == "columns" and len(axes) == 1:
            for size in self.tiles(axes[0]):
                yield replace(base, tile=((axes[0], size),))
        elif base.kind == "pointwise" and len(axes) == 2:
            for sides in _TRANSPOSED_TILES:
                if all(side <= 2 * self.lengths[axis] for axis, side in zip(axes, sides, strict=True)):
                    yield replace(base, tile=tuple(zip(axes, sides, strict=True)))
            plain = tuple(a for a in self.chooser.names if a != axes[1])
            yield replace(base, outer=plain, inner=(axes[1],), tile=())

    def tiles(self, axis: str) -> list[int]:
        length = self.lengths[axis]
        return [size for size in _COLUMNS if size < 2 * length]


def label_of(schedule: Schedule) -> str:
    """A short text that tells a schedule from others of one nest."""
    parts = [schedule.kind, ".".join(schedule.outer) or "-", ".".join(schedule.inner) or "-"]
    parts += [f"vector {schedule.vector}"] if schedule.width else []
    parts += [f"tile {' x '.join(str(size) for _, size in schedule.tile)}"] if schedule.tile else []
    parts += [f"keeps {'.'.join(schedule.kept)}"] if schedule.kept else []
    parts += [f"unroll {schedule.unroll}"] if schedule.unroll else []
    parts += ["one thread"] if schedule.parallel == _ALONE else ["all threads"] if schedule.parallel == 0 else []
    parts += [word for word in ("prefetch", "nontemporal") if getattr(schedule, word)]
    return " ".join(parts)
