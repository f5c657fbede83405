"""What a nest costs on a GPU, counted in bytes: those that it moves, and its arithmetic and its launch as the bytes
that memory moves in that time.

It compares ways to divide work among nests, before anything is known of their schedules; ``gpu_cost`` ranks those. The
numbers are an H100's, and other GPUs of its kind are near: 2.6 TB/s, 132 multiprocessors with 128 instructions a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Div, Expr, Loaded, Mod, as_expr
from lamina.ir.index import prod as product
from lamina.ir.loops import (
    Buffer,
    Check,
    Compute,
    Index,
    Load,
    Nest,
    Random,
    Reduce,
    Scan,
    Store,
    axes_of_values,
    operands,
)
from lamina.ir.ops import OPS
from lamina.schedule.buffer_facts import estimate
from lamina.schedule.gpu_cost import phases

__all__ = [
    "LAUNCH",
    "NEAR",
    "SECTOR",
    "computes",
    "computes_at_points",
    "executed",
    "instructions",
    "instructions_of",
    "moved",
    "work",
]

LAUNCH = 5e6
"""Two microseconds: a launch within a recorded graph, and what is idle at the ends of two kernels."""
_INSTRUCTION = 0.12
"""An instruction at one point, where multiprocessors issue seven in ten of what they could."""
_CHAIN = 4e3
"""An instruction of every point: each waits for those before it, however few points there are."""
_OVERLAP = 0.25
"""Share of the shorter one of arithmetic and memory traffic that the longer one does not hide."""
_SCANNED = 2.5
"""Instructions beside a scan, as a multiple: programs are few, tiles partly empty, and nothing hides them.

Pixel shuffle and 70 instructions before a running product of 28 M points: 895 us on an H100 against 380 apart.
"""
_REREAD = 0.1
"""A byte taken from a multiprocessor's own cache."""
NEAR = 0.25
"""A byte that another program read shortly before."""
_NEAR_BYTES = 12 << 20
"""Distance in memory up to which that is so."""
_SMALL = 0.35
"""A byte of a tensor that the second-level cache holds."""
_SMALL_BYTES = 25 << 20
"""Bytes that are taken to stay in L2, half of an H100's 50 MB; only the choice between ways to divide work rests on
it.
"""
SECTOR = 32
"""Bytes that are read for one element at a loaded place, and the fewest that memory reads or writes."""
_FILL = 2
"""Bytes moved for each of a sector that a kernel writes in part: it is read as well. (H100, 33.5 MB of bfloat16 stored
every third element: 95 us.)
"""
_HELD = 1 << 14
"""Reduced points that are read once and kept."""
_DIVISION = 6
"""Instructions of a quotient or a remainder within an index."""
_SORT = 162
"""Instructions of a point of rows of 128 that are sorted."""
_DRAW = 60
"""Operations of one draw of Philox, estimated from its ten rounds."""
_INSTRUCTIONS = {
    "div": 9,
    "sin": 32,
    "cos": 32,
    "tan": 60,
    "tanh": 24,
    "expm1": 24,
    "log1p": 24,
    "erf": 30,
    "erfc": 50,
    "erfinv": 80,
    "pow": 80,
    "fmod": 40,
    "mod": 40,
    "atan2": 60,
    "lgamma": 200,
    "digamma": 200,
}
"""Instructions where they differ from ``OPS``, special functions counted as the eight that take as long."""


def work(nest: Nest, buffers: Mapping[str, Buffer]) -> float:
    """The time that the nest takes, in bytes."""
    return _Work(nest, buffers).total()


def instructions(nest: Nest, buffers: Mapping[str, Buffer]) -> float:
    """Instructions of all threads."""
    counted = _Work(nest, buffers)
    return sum(instructions_of(eqn) * counted.times(counted.axes(eqn)) for eqn in nest.body)


def executed(count: float) -> float:
    """The time of so many instructions of threads, in bytes."""
    return count * _INSTRUCTION


def computes(nest: Nest, buffers: Mapping[str, Buffer]) -> bool:
    """Whether the instructions take longer than memory takes to move what is accessed."""
    return executed(instructions(nest, buffers)) > moved(nest, buffers)


def moved(nest: Nest, buffers: Mapping[str, Buffer]) -> float:
    """Bytes that memory moves for what is accessed."""
    counted = _Work(nest, buffers)
    return sum(counted.moved(eqn) for eqn in nest.body if isinstance(eqn, Load | Store))


def computes_at_points(nest: Nest, dtypes: Mapping[str, str]) -> bool:
    """Whether instructions take at least half as long as memory, in a flat nest and for what varies over all axes, each
    byte moved once; ``dtypes`` gives each buffer's element type.
    """
    values, whole = axes_of_values(nest), frozenset(a.name for a in nest.axes)
    bytes_moved = computed = 0.0
    for eqn in nest.body:
        if isinstance(eqn, Load | Store) and eqn.index[0].axes() == whole:
            bytes_moved += DTYPES[dtypes[eqn.buffer]].size
        elif isinstance(eqn, Compute) and values[eqn.out] == whole:
            computed += instructions_of(eqn)
    return 2 * computed * _INSTRUCTION > bytes_moved


def instructions_of(eqn: object) -> float:
    """Instructions of an equation at a point."""
    if isinstance(eqn, Compute):
        count = _INSTRUCTIONS.get(eqn.op, OPS[eqn.op].cost)
        return count * (2 if DTYPES[eqn.dtype].size == 8 else 1)
    if isinstance(eqn, Load | Store):
        atoms = {a for e in eqn.index if e.terms for a in e.atoms()}
        return 1 + _DIVISION * sum(isinstance(a, Div | Mod) for a in atoms)
    if isinstance(eqn, Index):
        return 1 + _DIVISION * sum(isinstance(a, Div | Mod) for a in eqn.expr.atoms())
    if isinstance(eqn, Random):
        return _DRAW
    if isinstance(eqn, Scan) and eqn.op == "sort":
        return _SORT * (2 if DTYPES[eqn.dtype].size == 8 else 1)
    return 2 if isinstance(eqn, Reduce | Scan | Check) else 0


class _Work:
    def __init__(self, nest: Nest, buffers: Mapping[str, Buffer]) -> None:
        self.nest, self.buffers = nest, buffers
        self.values = axes_of_values(nest)
        self.extents = {a.name: max(estimate(a.extent), 1) for a in nest.axes}
        self.order = {name: at for at, name in enumerate(self.extents)}
        self.reduced = {name for e in nest.body if isinstance(e, Reduce) for name in e.axes}
        long = prod(self.extents[n] for n in self.reduced) > _HELD
        self.passes = phases(nest, self.reduced) if long else 1
        self.places: dict[str, list[Expr]] = {}
        self.stores: dict[str, list[Expr]] = {}

    def total(self) -> float:
        nbytes = instructions = chain = 0.0
        for eqn in self.nest.body:
            if isinstance(eqn, Load | Store):
                nbytes += self.moved(eqn)
            count = instructions_of(eqn)
            chain += count
            instructions += count * self.times(self.axes(eqn))
        computed = executed(instructions)
        if any(isinstance(eqn, Scan) for eqn in self.nest.body):
            return LAUNCH + _CHAIN * chain + nbytes + _SCANNED * computed
        return LAUNCH + _CHAIN * chain + max(nbytes, computed) + _OVERLAP * min(nbytes, computed)

    def axes(self, eqn: object) -> frozenset[str]:
        """The axes over which an equation is done again and again."""
        if isinstance(eqn, Reduce | Scan):
            return self.values[eqn.value] | self.reduced
        names = [n for n in operands(eqn) if n in self.values]  # type: ignore[arg-type]
        found = frozenset().union(*(self.values[n] for n in names))
        if isinstance(eqn, Load | Store):
            return found.union(*(e.axes() for e in eqn.index))
        if isinstance(eqn, Index | Random):
            return found | (eqn.expr if isinstance(eqn, Index) else eqn.index).axes()
        return found

    def times(self, names: frozenset[str]) -> float:
        """How often what varies over these axes is computed: what varies over the last one is at each point."""
        last = max((self.order[n] for n in names), default=-1)
        count = prod(n for at, n in enumerate(self.extents.values()) if at <= last)
        return count * (self.passes if names & self.reduced else 1)

    def moved(self, eqn: Load | Store) -> float:
        """Bytes that a load or a store takes from memory, and from caches at their lower price."""
        buffer = self.buffers[eqn.buffer]
        size, names = DTYPES[buffer.dtype].size, self.axes(eqn)
        times, whole = self.times(names), estimate(product(buffer.shape)) * size
        place = sum((e * s for e, s in zip(eqn.index, buffer.strides, strict=True)), as_expr(0))
        if isinstance(eqn, Store):
            return times * size * 3 if eqn.mode != "set" else self.written(eqn.buffer, place, times * size, size)
        loaded = [a.name for a in place.atoms() if isinstance(a, Loaded)]
        if loaded:
            apart = frozenset[str]().union(*(self.values[n] for n in loaded))  # neighbours along these are anywhere
            along = any(place.coefficient(a) == 1 for a in self.nest.axes if a.name not in apart)
            return times * (size if along else SECTOR) * (_SMALL if whole <= _SMALL_BYTES else 1)
        touched = min(prod(self.extents[n] for n in place.axes()) * size * self.spread(place, size), whole)
        passes = self.passes if names & self.reduced else 1
        before = self.places.setdefault(eqn.buffer, [])
        share = min((self.share(place - other, size, whole) for other in before), default=1.0)
        before.append(place)
        again = (passes - 1) * (_SMALL if whole <= _SMALL_BYTES else 1)
        return touched * (share + again) + times * size * _REREAD

    def written(self, buffer: str, place: Expr, own: float, size: int) -> float:
        """Bytes that a store moves: whole sectors, unless other stores of the nest fill them as well."""
        apart = self.spread(place, size)
        if apart == 1:
            return own
        before = self.stores.setdefault(buffer, [])
        gaps = [place - other for other in before]
        before.append(place)
        if any(not gap.terms and abs(gap.const) * size < SECTOR for gap in gaps):
            return 0.0 if len(before) < apart else own * apart * (1 - _FILL)
        return own * apart * _FILL

    def spread(self, place: Expr, size: int) -> float:
        """How many bytes memory moves for one that is accessed: more than one where runs are shorter than sectors."""
        steps = [(place.coefficient(a), self.extents[a.name]) for a in self.nest.axes if a.name in place.axes()]
        if any(step is None or not step.is_int or step.const == 0 for step, _ in steps):
            return 1.0
        run = 1
        for step, extent in sorted((abs(step.const), extent) for step, extent in steps if step is not None):
            if extent == 1:
                continue
            if step > run:
                return max(1.0, min(step * size, SECTOR) / (run * size))
            run = max(run, step * extent)
        return 1.0

    def share(self, distance: Expr, size: int, whole: int) -> float:
        """What reading a buffer again costs, at places so far from those read before."""
        if not distance.terms and abs(distance.const) * size <= _NEAR_BYTES:
            return NEAR if distance.const else 0.0
        return _SMALL if whole <= _SMALL_BYTES else 1.0
