"""Which reduced axis of a nest is cut, and into how many parts."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.ir.index import Axis, as_expr, ceildiv
from lamina.schedule.gpu_cut_accesses import Accesses
from lamina.schedule.gpu_cutting import MANY, SHORT, NestToCut
from lamina.schedule.gpu_facts import guess
from lamina.schedule.gpu_partials import Cut

__all__ = ["ROW_POINTS", "AxisToCut"]

ROW_POINTS = 8192
"""Points of a row that are worth a program."""
_ALIGNED = 64
"""Points that unequal parts of a long row are a multiple of, so that all of them begin where wide accesses may."""


_LEAST_DEALT, _WIDEST_RUN = 8, 1024
"""Points of such parts at least, and of the run that takes their place at most."""
_FILLED = 0.75
"""Share of its tiles that such a run has to fill."""


def _filled(width: int) -> float:
    """Share of its tiles that a run fills, in wide accesses."""
    return width / (-(-width // SHORT) * SHORT)


@dataclass(frozen=True, slots=True)
class AxisToCut:
    """Finds cuts of one nest."""

    facts: NestToCut
    accesses: Accesses

    def dealt(self, run: list[str], over: frozenset[str], reduces: list[int]) -> Cut | None:
        """A cut of the axis that goes on where a short contiguous run that is kept ends, neighbours in parts of their
        own: a long run is then reduced along what is left, in wide accesses, where tiles of the short one would leave
        threads without a point and read narrow pieces.
        """
        width = self.facts.size(run)
        if 2 * width > SHORT or self.facts.size(self.facts.axes) < MANY:
            return None
        if not all(self.facts.axes[a].extent.is_int for a in run):
            return None
        if any(self.facts.reduce(p).op.startswith("arg") for p in reduces):
            return None
        along = [o for o in self.accesses.large if o.coefficient(self.facts.axes[run[0]]) == 1]
        after = [a for a in over if 2 * sum(o.coefficient(self.facts.axes[a]) == width for o in along) > len(along)]
        if len(after) != 1 or self.accesses.stuck(axis := self.facts.axes[after[0]]) or not axis.extent.is_int:
            return None
        if any(axis.name in o.axes() and run[0] not in o.axes() for _, o in self.accesses.loads):
            return None  # what a run has in common would be read for each of its points
        n = axis.extent.const
        counts = range(-(-SHORT // width), min(n // _LEAST_DEALT, _WIDEST_RUN // width) + 1)
        best = max((c for c in counts if n % c == 0), key=lambda c: (_filled(c * width), -c), default=0)
        if best == 0 or _filled(best * width) < _FILLED:
            return None
        return Cut(axis, best, as_expr(n // best), dealt=True)

    def axis_to_cut(self, names: frozenset[str], parts: int, reduces: list[int], near: bool = False) -> Cut | None:
        """The outermost axis in memory that gives about as many parts as wanted; else the one that gives most.

        The axis along which most bytes are contiguous is the innermost one, whatever a transposed operand's steps are.

        ``near``: no more of them than that, even where the points of an axis would be such.
        """
        steps = dict.fromkeys(names, 0)
        for _, offset in self.accesses.offsets:
            for a in names:
                coef = offset.coefficient(self.facts.axes[a])
                steps[a] = max(steps[a], guess(coef) if coef is not None and coef != 0 else 0)
        best: Cut | None = None
        fast = self.accesses.fast()
        order = sorted(names, key=lambda a: (a == fast, -steps[a]))
        for name in order:
            axis = self.facts.axes[name]
            ordered = [self.facts.reduce(p).axes for p in reduces if self.facts.reduce(p).op.startswith("arg")]
            if any(axes[0] != name for axes in ordered):
                continue
            found = self.divided(axis, parts, len(names) > 1 and not near)
            if found is not None and 2 * found.parts >= parts:
                return found
            if best is None and (ranges := self.ranges(order, parts, reduces)) is not None:
                return ranges
            if found is not None and (best is None or found.parts > best.parts):
                best = found
        return best

    def ranges(self, order: list[str], parts: int, reduces: list[int]) -> Cut | None:
        """Where the slowest axis alone gives too few parts, its points apart and the next one cut, for rows over images
        and their lines: pieces without gaps, but for axes that cannot be cut.
        """
        axes = [self.facts.axes[name] for name in order]
        found = [self.facts.reduce(p) for p in reduces]
        if any(e.op.startswith("arg") or not set(order) <= set(e.axes) for e in found):
            return None
        if any(not a.extent.is_int for a in axes):
            return None
        count = axes[0].extent.const
        for k, axis in enumerate(axes[1:], 1):
            n, wanted = axis.extent.const, parts / count
            if 2 * n >= wanted:
                best = min((d for d in range(1, n + 1) if n % d == 0), key=lambda d: max(d / wanted, wanted / d))
                if 2 * best < wanted:  # no divisor is near (H100, 194,865 rows of 63: 165 parts 134 us, 550 98)
                    return Cut(axis, round(wanted), as_expr(-(-n // round(wanted))), tuple(axes[:k]))
                if best == 1:
                    return Cut(axes[k - 1], axes[k - 1].extent.const, as_expr(1), tuple(axes[: k - 1]))
                return Cut(axis, best, as_expr(n // best), tuple(axes[:k]))
            count *= n
        return None

    def divided(self, axis: Axis, parts: int, others: bool) -> Cut | None:
        extent = axis.extent
        if not extent.is_int:
            return Cut(axis, parts, ceildiv(extent, parts))
        n = extent.const
        if others and parts <= 2 * n and n <= 4 * parts:
            return Cut(axis, n, as_expr(1))
        if n < 4:
            return None
        parts = min(parts, n // 2)
        divisors = [d for d in range(max(parts // 2, 2), min(2 * parts, n // 2) + 1) if n % d == 0]
        if divisors:
            best = min(divisors, key=lambda d: abs(d - parts))
            return Cut(axis, best, as_expr(n // best))
        length = -(-n // parts)
        if length >= ROW_POINTS // 16:
            length = -(-length // _ALIGNED) * _ALIGNED
        return Cut(axis, -(-n // length), as_expr(length))
