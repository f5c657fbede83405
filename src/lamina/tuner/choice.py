"""The row to take: best by the objective among those that are right, the simplest among equals."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.errors import BadArgument
from lamina.tuner.objective import Objective
from lamina.tuner.values import CHOOSABLE, Figures, Row

__all__ = ["ALIKE", "CLEARLY", "choose", "contest", "pareto"]

ALIKE = 0.02
"""Candidates nearer to each other than this, as a fraction of the better one's figure, are called equal."""
CLEARLY = 0.05
"""By how much a candidate must be faster than a simpler one, with both timed in one process, to be taken instead."""
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
    # What cannot be told from eager has eager's speed: a lucky median must not win.
    best_row, best = max(allowed, key=lambda pair: _speed(*pair))
    level = {name for name, verdict in best_row.against if verdict != "faster"}
    equals = [row for row, f in allowed if row.candidate.name in level or _as_fast(row, f, best_row, best)]
    return min(equals, key=lambda row: row.candidate.cost)


def contest(rows: Sequence[Row], objective: Objective) -> tuple[Row, Row] | None:
    """The fastest row, and the simplest that may be as fast, which are to be timed in one process; None if there is
    nothing to settle: ratios of two processes differ by more than their intervals tell.
    """
    allowed = _allowed(rows, objective)
    if not allowed or objective.metric == "memory":
        return None
    best, figures = max(allowed, key=lambda pair: _speed(*pair))
    chosen, known = choose(rows, objective), {name for name, _ in best.against}
    least = _speed(best, figures) * (1.0 - _NEAR)
    simpler = [
        row
        for row, f in allowed
        if row.verdict == "faster" and row is not best and row.candidate.name not in known and _speed(row, f) >= least
    ]
    places = {id(row): place for place, row in enumerate(rows)}

    def order(row: Row) -> tuple[int, int]:
        return row.candidate.cost, places[id(row)]

    first = min(simpler, key=order, default=None)
    return (best, first) if first is not None and order(first) < order(chosen) else None


def _timed(rows: Sequence[Row]) -> list[tuple[Row, Figures]]:
    return [(row, row.figures) for row in rows if row.figures is not None and row.verdict in CHOOSABLE]


def _allowed(rows: Sequence[Row], objective: Objective) -> list[tuple[Row, Figures]]:
    return [(row, figures) for row, figures in _timed(rows) if not objective.broken_by(figures)]


def _speed(row: Row, figures: Figures) -> float:
    return figures.speedup.middle if row.verdict in ("faster", "slower") else 1.0


def _as_fast(row: Row, figures: Figures, best_row: Row, best: Figures) -> bool:
    mine, top = _speed(row, figures), _speed(best_row, best)
    return mine >= top * (1.0 - ALIKE) or (row.verdict == "faster" and mine >= best.speedup.low)


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
