"""The row to take: best by the objective among those that are right, the simplest among equals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lamina.errors import BadArgument
from lamina.tuner.objective import Objective
from lamina.tuner.statistics import undisturbed
from lamina.tuner.values import CHOOSABLE, Figures, Row

__all__ = ["ALIKE", "CLEARLY", "choose", "contest", "majority", "pareto", "slight", "unsure"]

ALIKE = 0.02
"""Candidates nearer to each other than this, as a fraction of the better one's figure, are called equal."""
CLEARLY = 0.1
"""By how much a candidate must be faster than a simpler one, with both timed in one process, to be taken instead: the
same candidate differs by as much from process to process, so that nobody would see less.
"""
_NEAR = 0.3
"""By how much the same candidate may be slower in another process, where it has other memory and other neighbours."""


def choose(rows: Sequence[Row], objective: Objective) -> Row:
    """The row that ``objective`` prefers; eager's, where it keeps the limits and nothing is better beyond noise.

    Raises ``BadArgument`` if no row that was timed keeps the limits, with what is nearest.
    """
    allowed = _allowed(rows, objective)
    if not allowed:
        why = "; ".join(f"{row.candidate.name}: {objective.broken_by(f)}" for row, f in _timed(rows))
        raise BadArgument(f"no candidate keeps the limits of {objective}: {why}", remedy="allow more, or drop a limit")
    if objective.metric == "memory":
        return _least_memory(allowed)
    taken, *others = _near_the_fastest(allowed)
    for other in others:
        known = _verdict(other, taken)
        if known == "faster" or (not known and _is_faster(other, taken)):
            taken = other
    return taken


def contest(rows: Sequence[Row], objective: Objective) -> tuple[Row, Row] | None:
    """A row, and the simpler one that is taken unless it is faster, which are to be timed in one process; None if there
    is nothing to settle: ratios of two processes differ by more than their intervals tell.
    """
    allowed = _allowed(rows, objective)
    if not allowed or objective.metric == "memory":
        return None
    taken, *others = _near_the_fastest(allowed)
    for other in others:
        known = _verdict(other, taken)
        if not known:
            return other, taken
        taken = other if known == "faster" else taken
    return None


def slight(rows: Sequence[Row], objective: Objective) -> list[Row]:
    """The rows that may be chosen and gain less than the same candidate differs by from process to process: other
    processes are to say whether they are faster than eager.
    """
    allowed = _allowed(rows, objective)
    if objective.metric == "memory":
        return []
    best = max((f.speedup.middle for row, f in allowed if row.verdict == "faster"), default=1.0)
    least = {"faster": 1.0, "tie": 1.0 + ALIKE}
    return [
        row
        for row, f in allowed
        if max(least.get(row.verdict, 1.0 + CLEARLY), best * (1.0 - _NEAR)) < f.speedup.middle < 1.0 + CLEARLY
    ]


def unsure(figures: Figures) -> bool:
    """Whether another process may say otherwise of whether a candidate is clearly faster than its rival: the ratio is
    nearer to the margin than half of what processes differ by.
    """
    return abs(figures.speedup.middle - (1.0 + CLEARLY)) < CLEARLY / 2


def majority(rows: Sequence[Row]) -> Row:
    """Of rows of several processes the one with the middle speed, with the verdict of more than half of them.

    A candidate that fails in one of them has failed. Those that were not tried say nothing.
    """
    tried = [row for row in rows if row.verdict not in ("not tried", "unavailable")]
    timed = sorted((row for row in tried if row.verdict in CHOOSABLE), key=_middle)
    if len(timed) < len(tried):
        return next(row for row in tried if row.verdict not in CHOOSABLE)
    taken = timed[len(timed) // 2]
    faster = sum(row.verdict == "faster" for row in timed)
    verdict = "faster" if 2 * faster > len(timed) else "tie" if taken.verdict == "faster" else taken.verdict
    told = "" if verdict == "faster" or not faster else f"faster in {faster} of {len(timed)} processes"
    return replace(taken, verdict=verdict, reason=told or taken.reason)


def _middle(row: Row) -> float:
    return 0.0 if row.figures is None else row.figures.speedup.middle


def _near_the_fastest(allowed: list[tuple[Row, Figures]]) -> list[Row]:
    """The rows that may be the fastest, the simplest first: each has to be faster than what is taken before it.

    Where the fastest is faster than eager these are such that are so too. What cannot be told from eager has eager's
    speed: a lucky median must not win.
    """
    best_row, best = max(allowed, key=lambda pair: _speed(*pair))
    if best_row.verdict != "faster":
        least = _speed(best_row, best) * (1.0 - ALIKE)
        near = [row for row, f in allowed if _speed(row, f) >= least]
    else:
        winners = [(row, f) for row, f in allowed if row.verdict == "faster"]
        quickest = min((f for _, f in winners), key=_seconds)
        near = [row for row, f in winners if not (_is_behind(f, best, _NEAR) and _is_behind(f, quickest, _NEAR))]
    return sorted(near, key=lambda row: row.candidate.cost)


def _verdict(row: Row, simpler: Row) -> str:
    """What came of a row against a simpler one; "" if nothing is known and they have to be timed in one process. One
    that is as much slower in its own process as it would have to be faster is not timed again.
    """
    if row.verdict != "faster":
        return "tie"  # nothing is faster than eager here
    found = dict(row.against).get(simpler.candidate.name, "")
    behind = row.figures and simpler.figures and _is_behind(row.figures, simpler.figures, CLEARLY)
    return found or ("slower" if behind else "")


def _seconds(figures: Figures) -> float:
    return undisturbed(figures.timings, figures.p50)


def _is_behind(mine: Figures, other: Figures, share: float) -> bool:
    """Whether a candidate is slower by this share, both against eager and by what its calls take: on a busy machine one
    of the two says little.
    """
    left = 1.0 - share
    return mine.speedup.middle < other.speedup.middle * left and _seconds(mine) * left > _seconds(other)


def _is_faster(row: Row, simpler: Row) -> bool:
    """Whether the figures of two processes say so, where the two were not timed in one."""
    mine, other = row.figures, simpler.figures
    if mine is None or other is None:
        return False
    return mine.speedup.middle > other.speedup.middle * (1.0 + ALIKE) and mine.speedup.low > other.speedup.middle


def _timed(rows: Sequence[Row]) -> list[tuple[Row, Figures]]:
    return [(row, row.figures) for row in rows if row.figures is not None and row.verdict in CHOOSABLE]


def _allowed(rows: Sequence[Row], objective: Objective) -> list[tuple[Row, Figures]]:
    return [(row, figures) for row, figures in _timed(rows) if not objective.broken_by(figures)]


def _speed(row: Row, figures: Figures) -> float:
    return figures.speedup.middle if row.verdict in ("faster", "slower") else 1.0


def _least_memory(allowed: list[tuple[Row, Figures]]) -> Row:
    known = [(row, figures.peak_memory) for row, figures in allowed if figures.peak_memory is not None]
    if not known:
        raise BadArgument("the peak memory could not be measured here", remedy="take latency or throughput")
    least = min(memory for _, memory in known)
    equals = [row for row, memory in known if memory <= least * (1.0 + ALIKE)]
    return min(equals, key=lambda row: row.candidate.cost)


def pareto(rows: Sequence[Row]) -> list[Row]:
    """The rows that no other is at least as good as in latency, peak memory and error, and better in one of them."""

    def point(row: Row) -> tuple[float, float, float]:
        figures = row.figures
        assert figures is not None
        return (1.0 / _speed(row, figures), figures.peak_memory or 0.0, figures.error)

    timed = [row for row in rows if row.figures is not None and row.verdict in CHOOSABLE]
    points = {id(row): point(row) for row in timed}

    def beaten(row: Row) -> bool:
        mine = points[id(row)]
        others = (points[id(other)] for other in timed if other is not row)
        return any(other != mine and all(a <= b for a, b in zip(other, mine, strict=True)) for other in others)

    return [row for row in timed if not beaten(row)]
