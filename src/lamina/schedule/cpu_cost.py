"""How long a schedule takes on a CPU: instructions, waiting for the sum before, bytes and threads.

The constants describe a core of today in round numbers, and were corrected where candidates that were timed came in
another order (``docs/design/051``). They rank candidates of one nest; they do not predict times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

from lamina.base.dtypes import DTYPES
from lamina.base.target import Target
from lamina.ir.index import Axis, Expr, Loaded
from lamina.ir.loops import Compute, Load, Nest, Random, Reduce, Scan, Store, axes_of_values, operands
from lamina.ir.ops import OPS
from lamina.ir.periodic import Periodic, periodic
from lamina.ir.plan import Schedule, furthest, most_turns
from lamina.schedule.accesses import in_stretches
from lamina.schedule.tile import Chooser

__all__ = ["CostModel"]

_PER_NS = 8.0
"""Instructions of a core in a nanosecond, those that nothing waits for."""
_LATENCY = 1.3
"""Nanoseconds until a sum can be added to."""
_FOLD = 5.0
"""Nanoseconds to join the lanes of a vector."""
_ROW = 4.0
"""Nanoseconds around each vector loop."""
_START = 4000.0
"""Nanoseconds to start and join the other threads."""
_RANDOM = 30
"""Instructions for one draw of Philox, estimated from its ten rounds."""
_STRIDED = 2.0
"""Instructions for each element of a vector whose elements lie apart."""
_LISTED = 2.5
"""The same where each lane's place is read from a table."""
_TAKEN = 8.0
"""Instructions for a vector whose elements are taken out of one or two that are loaded whole, or lie side by side
but for a jump now and then: a division tells where.
"""
_TRANSPOSED_TILES = 3.0
"""Instructions for each vector of an operand that is transposed tile by tile."""
_SPEED = {"l2": 30.0, "llc": 12.0, "memory": 6.0}
"""Bytes in a nanosecond that a core gets from there."""
_SHARED = 1.7
"""How many cores' share of the memory all of them together get."""
_LINE = 64
"""Bytes of a cache line of x86-64 and most Arm processors; a wrong value misjudges strided loads."""
_OVERLAP = 0.3
"""Share of the shorter of computing and moving that is not hidden behind the longer."""


class CostModel:
    """What to expect of schedules of one nest; ``lengths`` gives each axis its length."""

    def __init__(self, nest: Nest, dtypes: Mapping[str, str], target: Target, lengths: Mapping[str, int]) -> None:
        self.nest, self.dtypes, self.target, self.lengths = nest, dtypes, target, lengths
        self.values = axes_of_values(nest)
        self.extent = {a.name: a.extent for a in nest.axes}
        self.reduced = frozenset(a for e in nest.body if isinstance(e, Reduce) for a in e.axes)
        self.chooser = Chooser(nest, dtypes, target)
        moments = sum(isinstance(e, Reduce) and e.op == "welford" for e in nest.body)
        self.phases = self.chooser.phases() + min(moments, 1)
        accesses = {(e.buffer, e.index[0]): e for e in nest.body if isinstance(e, Load | Store)}
        self.places = Counter((buffer, _row(e)) for (buffer, _), e in accesses.items())
        """How many neighbours each point reads or writes in a row of a buffer."""
        self.bytes = self.held(list(accesses.values()))

    def __call__(self, schedule: Schedule) -> float:
        """Microseconds."""
        busy, moved = self.computing(schedule), self.moving(schedule)
        team = self.threads(schedule)
        points = self.points(frozenset(self.lengths))
        alone = 1 if team == 1 else 1 / team
        memory = moved / min(team, _SHARED) if sum(self.bytes.values()) > self.target.llc_bytes else moved * alone
        busy *= alone
        several = self.target.processors > 1 and self.units(schedule) > 1
        joined = _START if several and points >= schedule.parallel else 0.0
        if schedule.kind == "mixed":
            joined += team * self.points(frozenset(schedule.inner) - self.reduced) / 2
        return (max(busy, memory) + _OVERLAP * min(busy, memory) + joined) / 1000

    # ---- threads ------------------------------------------------------------------------------------------------

    def units(self, schedule: Schedule) -> int:
        """Pieces of work that threads share."""
        units = self.points(frozenset(schedule.outer))
        for axis, size in schedule.tile:
            units *= -(-self.lengths[axis] // size)
        return units if schedule.outer or schedule.tile else 1

    def threads(self, schedule: Schedule) -> float:
        """How many times as fast the threads are as one."""
        units, most = self.units(schedule), self.target.processors
        if most == 1 or units == 1 or self.points(frozenset(self.lengths)) < schedule.parallel:
            return 1.0
        return units / -(-units // most)

    # ---- computing ----------------------------------------------------------------------------------------------

    def points(self, axes: frozenset[str]) -> int:
        return prod(self.lengths[a] for a in axes)

    def computing(self, schedule: Schedule) -> float:
        """Nanoseconds of one thread that does all of it."""
        lanes = max(schedule.width // 4, 1)
        vector = schedule.vector if schedule.width else None
        total = 0.0
        for eqn in self.nest.body:
            axes, cost = self.work(eqn, schedule, lanes)
            points = self.points(axes)
            if vector in axes and vector is not None:
                points //= self.lengths[vector]
                points *= -(-self.lengths[vector] // lanes)
            total += points * cost
        total += self.again(schedule, lanes)
        return total / _PER_NS + self.waiting(schedule, lanes)

    def work(self, eqn: object, schedule: Schedule, lanes: int) -> tuple[frozenset[str], float]:
        """Axes that an equation runs over, and instructions each time, of a vector where they include its axis."""
        if isinstance(eqn, Load | Store):
            index = eqn.index[0]
            axes = frozenset(index.axes()).union(*(self.values[n] for n in operands(eqn)))
            phases = self.phases if isinstance(eqn, Load) and axes & self.reduced else 1
            return axes, phases * self.access(eqn, schedule, lanes)
        if isinstance(eqn, Compute):
            return self.values[eqn.out], OPS[eqn.op].cost * self.wide(eqn.dtype)
        if isinstance(eqn, Random):
            return self.values[eqn.out], _RANDOM
        if isinstance(eqn, Reduce):
            axes = self.values[eqn.value] | frozenset(eqn.axes)
            kept = schedule.vector is not None and schedule.vector not in eqn.axes
            rows = schedule.unroll or 4
            cost = (1 + 2 / rows if kept else 1.0) * (3 if eqn.op == "welford" else 1)
            return axes, cost * self.wide(eqn.dtype)
        if isinstance(eqn, Scan):
            return self.values[eqn.out], float(lanes if eqn.axis == schedule.vector else 2)
        return frozenset(), 0.0

    def wide(self, dtype: str) -> int:
        return 2 if DTYPES[dtype].size == 8 else 1

    def access(self, eqn: Load | Store, schedule: Schedule, lanes: int) -> float:
        step = self.step(eqn.index[0], schedule.vector)
        if step in (0, 1, -1) or lanes == 1:
            return float(self.wide(self.dtypes[eqn.buffer]))
        if len(schedule.tile) == 2:
            return _TRANSPOSED_TILES
        one_by_one = _STRIDED * lanes
        if step is None and isinstance(eqn, Load) and self.jumps(eqn.index[0], schedule.vector):
            return _TAKEN
        if step is None and isinstance(eqn, Load) and (cycle := self.cycle(eqn, schedule.vector)) is not None:
            span = cycle.span(lanes)
            near = schedule.width == _LINE and span <= 2 * lanes
            return _TAKEN if near and DTYPES[eqn.dtype].size < 8 else _LISTED * lanes
        if step is None or step < 0:
            return one_by_one
        if isinstance(eqn, Store):
            whole = step <= most_turns(schedule.width) and self.places[eqn.buffer, _row(eqn)] == step
            return 2.0 * step if whole else one_by_one
        return 2.0 * step if step <= furthest(schedule.width) else one_by_one

    def cycle(self, eqn: Load, axis: str | None) -> Periodic | None:
        """Places along ``axis`` that go on in the same way after every few points."""
        return None if axis is None else periodic(eqn.index[0], Axis(axis, self.extent[axis]))

    def jumps(self, index: Expr, axis: str | None) -> bool:
        """Whether the elements of most vectors lie side by side, although places jump now and then."""
        return axis is not None and in_stretches(index, Axis(axis, self.extent[axis]), self.values, self.target)

    def step(self, index: Expr, axis: str | None) -> int | None:
        """Elements from one point of ``axis`` to the next, ``None`` where that is not a number."""
        if axis is None or any(isinstance(a, Loaded) and axis in self.values[a.name] for a in index.atoms()):
            return None if axis is not None else 0
        factor = index.coefficient(Axis(axis, self.extent[axis]))
        return factor.const if factor is not None and factor.is_int else None

    def again(self, schedule: Schedule, lanes: int) -> float:
        """Instructions for values that several phases need and that are not kept, and for keeping the others."""
        if self.phases == 1:
            return 0.0
        crossing = self.chooser.crossing(schedule.inner, 2)
        total = 0.0
        for name, price in crossing.items():
            count = self.points(self.values[name]) / (lanes if schedule.vector in self.values[name] else 1)
            total += count * (2.0 if name in schedule.kept else price)
        return total

    def waiting(self, schedule: Schedule, lanes: int) -> float:
        """Nanoseconds in which a sum waits for itself, and around vector loops."""
        vector = schedule.vector
        if vector is None or not schedule.width:
            return 0.0
        total = self.points(frozenset(self.lengths) - {vector}) * _ROW / 4
        for eqn in self.nest.body:
            if isinstance(eqn, Reduce) and vector in eqn.axes:
                axes = self.values[eqn.value] | frozenset(eqn.axes)
                rows = self.points(axes - {vector})
                steps = -(-self.lengths[vector] // lanes)
                unroll = schedule.unroll or 4
                whole = axes - frozenset(eqn.axes)
                total += self.points(whole) * (_FOLD + unroll * _LATENCY)
                total += rows * (steps // unroll + steps % unroll) * _LATENCY / 4
        return total

    # ---- moving -------------------------------------------------------------------------------------------------

    def held(self, accesses: Sequence[Load | Store]) -> dict[str, int]:
        """Bytes of each buffer: of all that is read and written there, and no more than from its first element to its
        last.
        """
        total, ends = Counter[str](), dict[str, list[tuple[int, int]]]()
        for eqn in accesses:
            total[eqn.buffer] += self.touched(eqn)
            low, high = eqn.index[0].bounds()
            if low is not None and high is not None and high.is_int:
                ends.setdefault(eqn.buffer, []).append((low, high.const))
        for buffer, found in ends.items():
            if len(found) == sum(eqn.buffer == buffer for eqn in accesses):
                count = max(high for _, high in found) - min(low for low, _ in found) + 1
                total[buffer] = min(total[buffer], count * DTYPES[self.dtypes[buffer]].size)
        return dict(total)

    def touched(self, eqn: Load | Store) -> int:
        """Bytes of the elements that are read or written."""
        axes = set(eqn.index[0].axes())
        last = self.nest.axes[-1].name if self.nest.axes else None
        if last in axes and isinstance(eqn, Load) and (cycle := self.cycle(eqn, last)) is not None:
            others = self.points(frozenset(axes) - {last})
            return others * cycle.distinct(self.lengths[last]) * DTYPES[self.dtypes[eqn.buffer]].size
        for atom in eqn.index[0].atoms():
            if isinstance(atom, Loaded):
                axes |= self.values[atom.name]
        return self.points(frozenset(axes)) * DTYPES[self.dtypes[eqn.buffer]].size

    def moving(self, schedule: Schedule) -> float:
        """Nanoseconds in which one thread moves all bytes."""
        row = self.points(frozenset(schedule.inner)) * 4
        for axis, size in schedule.tile:
            row = row // self.lengths[axis] * min(size, self.lengths[axis])
        times = self.phases if row > self.target.l2_bytes // 2 else 1
        total = 0.0
        for eqn in self.nest.body:
            if not isinstance(eqn, Load | Store):
                continue
            count = self.touched(eqn) * self.waste(eqn, schedule)
            if isinstance(eqn, Load):
                total += count * (times if self.values[eqn.out] & self.reduced else 1)
            else:
                total += count * 2
        return total / self.speed()

    def speed(self) -> float:
        """Bytes in a nanosecond that a core gets; of twice as many as a cache holds, none are left in it."""
        every = sum(self.bytes.values())
        found = 1 / _SPEED["memory"]
        for where, held in (("llc", self.target.llc_bytes), ("l2", self.target.l2_bytes * self.target.processors)):
            left = min(max(2 - every / held, 0.0), 1.0)
            found = left / _SPEED[where] + (1 - left) * found
        return 1 / found

    def waste(self, eqn: Load | Store, schedule: Schedule) -> float:
        """Lines that are fetched again, since what else is in them is wanted too late."""
        step = self.step(eqn.index[0], schedule.vector)
        if step in (0, 1, -1) or len(schedule.tile) == 2 or schedule.vector is None:
            return 1.0
        cycles = isinstance(eqn, Load) and self.cycle(eqn, schedule.vector) is not None
        if step is None and (cycles or self.jumps(eqn.index[0], schedule.vector)):
            return 1.0
        size, beside = DTYPES[self.dtypes[eqn.buffer]].size, self.places[eqn.buffer, _row(eqn)]
        if step is not None and 0 < step <= 2 * beside:
            return 1.0
        lines = self.lengths[schedule.vector] * _LINE
        if lines <= self.target.l1_bytes // 2:
            return 1.0
        return 2.0 if lines <= self.target.l2_bytes // 2 else _LINE / size / 2


def _row(eqn: Load | Store) -> Expr:
    """What tells the elements of one row from those of others."""
    index = eqn.index[0]
    return index - index.const
