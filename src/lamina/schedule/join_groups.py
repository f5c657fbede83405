"""Joining of groups: whether the nests of two become one kernel, and the group that they become."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from lamina.base.reasons import Reason
from lamina.ir.access import SHORT_ROW, contiguous_axes
from lamina.ir.index import Atom, Axis, Expr, as_expr, prod
from lamina.ir.loops import Check, Compute, Load, Nest, Reduce, Scan, Store, axes_of, axes_of_values, operands
from lamina.ir.ops import OPS
from lamina.schedule import reasons
from lamina.schedule.accesses import additions
from lamina.schedule.align import Alignment, align, disjoint
from lamina.schedule.buffer_facts import BufferFacts, estimate
from lamina.schedule.coarsening import coarsen, coarsenable
from lamina.schedule.dependence_graph import DependenceGraph
from lamina.schedule.fold_predicates import without_known_predicates
from lamina.schedule.group import Group, StepFacts, illegal, join, splits_scan
from lamina.schedule.lifetimes import Lifetimes
from lamina.schedule.loop_reversal import read_from_their_ends, reversed_loops
from lamina.schedule.nest_parts import COSTLY
from lamina.schedule.rolled_loops import rolled_to_match
from lamina.schedule.whole_rows import row_axes, without_axis
from lamina.schedule.window_coarsening import sliding_axes
from lamina.schedule.windows import FEW_PLACES, places

__all__ = ["Joiner"]

_AGAIN = 4
"""Times that a value of ``COSTLY`` instructions would be computed, from which on it is stored and read instead."""
_WORTH_A_KERNEL = 500_000
"""Instructions that are worth a kernel of its own, which takes about ten microseconds."""
_MAX_EQUATIONS = 400
"""Equations of a fused nest at most: compilation and live registers grow with each. Not measured."""
_MAX_BUFFERS = 40
"""Buffers of a fused nest at most: each takes a register for its address."""

_Pairs = list[tuple[tuple[Expr, ...], tuple[Expr, ...]]]
"""Indices of the two nests at which they touch one buffer."""


@dataclass(frozen=True, slots=True)
class Joiner:
    """Joins two groups of ``graph``, of which the first runs first; ``lifetimes`` are those of its steps."""

    graph: DependenceGraph
    buffers: BufferFacts
    lifetimes: Lifetimes
    numerics: str

    def joined(self, first: Group, second: Group) -> Group | Reason:
        """The joined group, with a loop coarsened or turned around where that is needed, or why there is none."""
        result = self._aligned(first, second)
        if isinstance(result, Reason):
            other = self._coarsened(first, second) or self._row_by_row(first, second)
            other = other or self._with_reversed_loop(first, second)
            return other or self._with_rolled_loop(first, second) or result
        return result

    def _aligned(self, first: Group, second: Group) -> Group | Reason:
        """The joined group over loops that line up as they are, or why there is none."""
        if first.nest is None or second.nest is None or first.facts is None or second.facts is None:
            return reasons.LIBRARY_CALL()
        if (first.facts.scatters or second.facts.scatters) and not self._feeds_scatter(first, second):
            return reasons.SCATTERS()
        if (first.raises and second.updates and not second.raises) or (
            second.raises and first.updates and not first.raises
        ):
            return reasons.ERROR_BEFORE_WRITE()
        shares, other_shares = self._shares_reads(first.nest), self._shares_reads(second.nest)
        if (shares and _combines(second.nest)) or (other_shares and _combines(first.nest)):
            return reasons.SHARES_WINDOW_READS()
        if not _is_short(first.nest, second.nest):
            return reasons.TOO_MANY_EQUATIONS()
        if len(first.reads | first.writes | second.reads | second.writes) > _MAX_BUFFERS:
            return reasons.TOO_MANY_BUFFERS()
        if (third := self.graph.between(first, second)) is not None:
            return reasons.STEP_BETWEEN(step=third.described)
        pairs = self._pairs(first, second, first.facts, second.facts)
        if pairs is None:
            return reasons.SHIFTED_READ()
        required, hints = pairs
        vertical = bool(required)
        found = align(first.nest.axes, second.nest.axes, required, hints, by_position=vertical)
        if found is None:
            return reasons.LOOPS_DIFFER()
        if not vertical and found.bound < max(len(first.nest.axes), len(second.nest.axes)):
            return reasons.LOOPS_DIFFER()
        if not vertical and (self.lifetimes.waits(first, second) or self.lifetimes.waits(second, first)):
            return reasons.WAITS_FOR_CALLS()
        if why := self._against(first, first.nest, second, second.nest, found):
            return why
        nest = join(first.nest, second.nest, found, self.numerics)
        if (shares or other_shares) and len(contiguous_axes(nest, self.buffers.buffers)) > 1:
            return reasons.KEEPS_WINDOW_ORDER()
        if why := self._against_joined(first, second, nest):
            return why
        facts = StepFacts.of(nest)
        fresh = facts.inner and not (first.facts.inner or second.facts.inner)
        why = illegal(nest, self.buffers.buffers, fresh, (first.nest, second.nest))
        return why or _union(first, second, nest, facts)

    def _feeds_scatter(self, first: Group, second: Group) -> bool:
        """Whether the second scatters what the first makes element by element, as rows of a table.

        On a CPU costly values are left to a kernel of their own: threads share its points, but not those of a scatter.
        What is computed once for a row, as the checks of its place are, hardly counts.
        """
        a, b = first.facts, second.facts
        if a is None or b is None or first.nest is None or a.scatters or any(f.reduces or f.scans for f in (a, b)):
            return False
        if not first.writes & second.reads or second.writes & (first.reads | first.writes):
            return False
        if any(map(self.buffers.on_gpu, b.stores)):
            return True
        return a.cost < COSTLY or _cost_of_a_point(first.nest) < COSTLY

    def _against_joined(self, first: Group, second: Group, nest: Nest) -> Reason | None:
        """Why the ``nest`` in which two groups are joined would not do what they do, or slower."""
        apart = [_additions(group.nest) for group in (first, second) if group.nest is not None]
        if sum(apart, Counter()) != _additions(nest):
            return reasons.SCATTERS()
        if self._turns_a_reduction(first, second, nest):
            return reasons.REDUCES_IN_ANOTHER_ORDER()
        return reasons.CUTS_ROWS() if self._cuts_rows(first, second, nest) else None

    def _turns_a_reduction(self, first: Group, second: Group, nest: Nest) -> bool:
        """Whether on a CPU what the first reduces along memory would be read across it, to save few bytes."""
        if first.nest is None or first.facts is None or not first.facts.reduces:
            return False
        if any(map(self.buffers.on_gpu, first.facts.stores)):
            return False
        alone = contiguous_axes(first.nest, self.buffers.buffers)
        reduced = {a for e in first.nest.body if isinstance(e, Reduce) for a in e.axes}
        if len(alone) != 1 or not alone <= reduced or len(contiguous_axes(nest, self.buffers.buffers)) < 2:
            return False
        length = prod(a.extent for a in first.nest.axes if a.name in alone)
        saved = sum(self.buffers.bytes[name] for name in first.writes & second.reads)
        return saved * estimate(length) < sum(self.buffers.bytes[name] for name in second.writes)

    def _cuts_rows(self, first: Group, second: Group, nest: Nest) -> bool:
        """Whether on a CPU loops along memory would be cut to the few elements that the first reduces.

        What it reduces and stores again has to be gone through before what the second does with it: of groups of
        channels that lie side by side in each pixel, group after group.
        """
        if first.nest is None or second.nest is None or first.facts is None or second.facts is None:
            return False
        if not first.facts.inner or second.facts.reduces or any(map(self.buffers.on_gpu, first.facts.stores)):
            return False
        reduced = {a for e in nest.body if isinstance(e, Reduce) for a in e.axes}
        cut = _longest(nest, contiguous_axes(nest, self.buffers.buffers) & reduced)
        whole = _longest(second.nest, contiguous_axes(second.nest, self.buffers.buffers))
        again = estimate(_points(nest)) / max(estimate(_points(first.nest)), 1)
        return 0 < cut < min(whole, SHORT_ROW) and again >= _AGAIN

    def _against(self, first: Group, left: Nest, second: Group, right: Nest, found: Alignment) -> Reason | None:
        """Why loops that line up are left apart; ``None`` if nothing is against one loop."""
        if splits_scan(left, found.left) or splits_scan(right, found.right):
            return reasons.SCAN_OVER_LOOPS()
        if _may_skip(left, found, found.right, right) or _may_skip(right, found, found.left, left):
            return reasons.EMPTY_LOOP()
        if self._repeats(first, found.left, found) or self._repeats(second, found.right, found):
            return reasons.COSTLY_REPEATED()
        return None

    def _pairs(self, first: Group, second: Group, a: StepFacts, b: StepFacts) -> tuple[_Pairs, _Pairs] | None:
        """Indices that must be one element, and those that had better be, of the largest buffers first.

        ``None`` where the second group cannot have what the first writes from the same point.
        """
        required: _Pairs = []
        hints: list[tuple[int, tuple[Expr, ...], tuple[Expr, ...]]] = []
        for name in sorted((first.reads | first.writes) & (second.reads | second.writes)):
            size = self.buffers.bytes[name]
            if name not in first.writes and name not in second.writes:
                hints.append((size, a.loads[name][0], b.loads[name][0]))
                continue
            left = a.stores.get(name, a.loads.get(name, [])) if name in first.writes else a.loads[name]
            right = b.loads.get(name, []) + b.stores.get(name, [])
            pairs = [(p, q) for p in left for q in right]
            near = [(p, q) for p, q in pairs if not disjoint(p, q)]
            apart = name not in b.loads and not near
            if not apart and (name in b.masked or (name in first.writes and self.graph.has_several_writers(name))):
                return None
            if apart:
                hints += [(size, p, q) for p, q in pairs]
            elif all(sum(q is other for _, other in near) == 1 for q in right):
                required += near  # each place is one of several that the first nest touches
            else:
                required += pairs
        hints.sort(key=lambda h: -h[0])
        return required, [(p, q) for _, p, q in hints]

    def _repeats(self, group: Group, places: Mapping[Atom, Expr | int], found: Alignment) -> bool:
        """Whether on a CPU the loops of the common space would go over the group's costly values again and again.

        Values that vary over outer loops only are computed once for the loops inside: those of a table, which vary over
        inner ones, are computed again in each step of a loop around them.
        """
        nest, facts = group.nest, group.facts
        if nest is None or facts is None or facts.reduces or facts.scans or facts.cost < COSTLY:
            return False
        if any(map(self.buffers.on_gpu, facts.stores)):
            return False
        held = {name for axis in nest.axes for name in as_expr(places.get(axis, as_expr(axis))).axes()}
        last = max((k for k, axis in enumerate(found.axes) if axis.name in held), default=-1)
        again = estimate(prod(axis.extent for axis in found.axes[: last + 1] if axis.name not in held))
        points = estimate(prod(axis.extent for axis in nest.axes))
        return again >= _AGAIN and points * again * facts.cost >= _WORTH_A_KERNEL

    def _coarsened(self, first: Group, second: Group) -> Group | None:
        """The joined group with a loop of one nest coarsened to the other's, which touches the same rows in parts.

        Or is a part of what the second reads with zeros around it, as the gradient of a slice.
        """
        if not first.writes & second.reads:
            return None
        shared = (first.reads | first.writes) & (second.reads | second.writes)
        for long, short in ((first, second), (second, first)):
            if long.nest is None or short.nest is None or short.facts is None:
                continue
            facts = short.facts
            padded = long is second and long.facts is not None and bool(long.facts.masked & first.writes)
            touched = max(len({*facts.loads.get(n, ()), *facts.stores.get(n, ())}) for n in shared)
            extents = {a.extent.const for a in short.nest.axes if a.extent.is_int}
            for axis, parts in coarsenable(long.nest, extents):
                if touched < parts and not padded:
                    continue
                nest = coarsen(long.nest, axis, parts)
                if nest is None:
                    continue
                nest = without_known_predicates(nest, self.numerics)
                made = replace(long, nest=nest, facts=StepFacts.of(nest))
                result = self._aligned(made, second) if long is first else self._aligned(first, made)
                if isinstance(result, Group):
                    return result
        return None

    def _row_by_row(self, first: Group, second: Group) -> Group | None:
        """The joined group with a loop over rows written out, where a point of the other nest has a row at once."""
        for long, short in ((first, second), (second, first)):
            if long.nest is None or long.facts is None or short.facts is None or short.nest is None:
                continue
            for axis in row_axes(long.nest, long.facts, short.facts):
                if self._loses_by_rows(long.nest, long.facts, axis, first.writes & second.reads):
                    continue
                nest = without_axis(long.nest, axis)
                if nest is None or _points(nest) != _points(short.nest):
                    continue  # what has fewer rows, such as weights, would be done again at each point of the other
                made = replace(long, nest=nest, facts=StepFacts.of(nest))
                result = self._aligned(made, second) if long is first else self._aligned(first, made)
                if isinstance(result, Group):
                    return result
        return None

    def _loses_by_rows(self, nest: Nest, facts: StepFacts, axis: Axis, shared: set[str]) -> bool:
        """Whether a nest had better not do a row at a point: eager's sums keep their order, and on a GPU threads beside
        each other read neighbours in memory (H200: five tensors of 309341 rows of 31, 0.61 ms, 0.35 apart).
        """
        if self.numerics == "eager" and any(isinstance(e, Reduce) for e in nest.body):
            return True
        if not any(map(self.buffers.on_gpu, shared)) or axis.name not in contiguous_axes(nest, self.buffers.buffers):
            return False
        places = {**facts.loads, **facts.stores}
        others = [places[name] for name in places.keys() - shared]
        return sum(any(axis in e.atoms() for index in found for e in index) for found in others) > 1

    def _with_reversed_loop(self, first: Group, second: Group) -> Group | None:
        """The joined group on a GPU, one loop turned around where the second reads backwards what the first writes."""
        if first.nest is None or second.nest is None or not any(map(self.buffers.on_gpu, first.writes & second.reads)):
            return None
        axes = read_from_their_ends(first.nest, second.nest)
        nest = reversed_loops(first.nest, axes) if axes else None
        if nest is None:
            return None
        result = self._aligned(replace(first, nest=nest, facts=StepFacts.of(nest)), second)
        return result if isinstance(result, Group) else None

    def _with_rolled_loop(self, first: Group, second: Group) -> Group | None:
        """The joined group on a GPU, one loop going around its end as the other's does over what the first writes.

        Not on a CPU, whose caches hold what lies between: layer norm, roll and windows of 8 x 56 x 56 x 96 take 1.2
        times as long joined, of 32 images as long as apart.
        """
        if first.nest is None or second.nest is None or not any(map(self.buffers.on_gpu, first.writes & second.reads)):
            return None
        for nest in rolled_to_match(first.nest, second.nest, self.buffers.buffers):
            result = self._aligned(replace(first, nest=nest, facts=StepFacts.of(nest)), second)
            if isinstance(result, Group):
                return result
        for nest in rolled_to_match(second.nest, first.nest, self.buffers.buffers):
            result = self._aligned(first, replace(second, nest=nest, facts=StepFacts.of(nest)))
            if isinstance(result, Group):
                return result
        return None

    def _shares_reads(self, nest: Nest) -> bool:
        """Whether the nest reads windows on a GPU of which neighbours that share a point read less."""
        if not any(isinstance(e, Load) and self.buffers.on_gpu(e.buffer) for e in nest.body):
            return False  # counting places costs more, and is asked of each pair of groups
        many = any(n > FEW_PLACES and self.buffers.on_gpu(b) for b, n in places(nest).items())
        return many and bool(sliding_axes(nest, self.buffers.buffers))


def _points(nest: Nest) -> Expr:
    return prod(axis.extent for axis in nest.axes)


def _longest(nest: Nest, names: Collection[str]) -> int:
    """Points of the longest of the axes ``names``, 0 if there is none."""
    return max((estimate(axis.extent) for axis in nest.axes if axis.name in names), default=0)


def _is_short(first: Nest, second: Nest) -> bool:
    """Whether the kernel of both is short, or half as long again as that of one of them, which sorts a row, at most."""
    counts = sorted((len(first.body), len(second.body)))
    return sum(counts) <= _MAX_EQUATIONS or 2 * counts[0] <= counts[1]


def _cost_of_a_point(nest: Nest) -> float:
    """Instructions for each point of the nest: what varies over some of the axes is shared by the points of others."""
    varies = axes_of_values(nest)
    extents = {a.name: estimate(a.extent) for a in nest.axes}
    total = 0.0
    for eqn in nest.body:
        if isinstance(eqn, Compute):
            shared = math.prod(n for name, n in extents.items() if name not in axes_of(eqn, varies))
            total += OPS[eqn.op].cost / max(shared, 1)
    return total


def _combines(nest: Nest) -> bool:
    """Whether the nest reduces or scans."""
    return any(isinstance(e, Reduce | Scan) for e in nest.body)


def _may_skip(nest: Nest, found: Alignment, places: Mapping[Atom, Expr | int], other: Nest) -> bool:
    """Whether ``other``, whose axes are at ``places`` in the common space, would stand in loops of ``nest`` alone that
    may have no points.

    Loops that only reduce do not matter: what does not vary over them is outside of them.
    """
    held = {name for axis in other.axes for name in as_expr(places.get(axis, as_expr(axis))).axes()}
    alone = {a.name for a in found.axes if a.name not in held and not (a.extent - 1).nonnegative()}
    if not alone:
        return False
    varies = axes_of_values(nest)
    reduced = {name for e in nest.body if isinstance(e, Reduce) for name in e.axes}
    stored = {
        name
        for e in nest.body
        if isinstance(e, Store | Check)
        for names in (*(varies[v] for v in operands(e)), *(i.axes() for i in (e.index if isinstance(e, Store) else ())))
        for name in names
    }
    return not alone <= reduced - stored


def _union(first: Group, second: Group, nest: Nest, facts: StepFacts) -> Group:
    """The group of ``nest``, which does what both do, with the number of the first."""
    both = {first.number, second.number}
    bits = (1 << first.number) | (1 << second.number)
    deps = (first.deps | second.deps) - both
    ancestors = (first.ancestors | second.ancestors) & ~bits
    raises, updates = first.raises or second.raises, first.updates or second.updates
    return Group(first.number, nest, None, set(facts.loads), set(facts.stores), facts, deps, ancestors, raises, updates)


def _additions(nest: Nest) -> Counter[tuple[str, int]]:
    """The stores that add to a buffer, with the number of axes that each runs over, whatever these are called."""
    found = Counter[tuple[str, int]]()
    for (name, axes), count in additions(nest).items():
        found[name, len(axes)] += count
    return found
