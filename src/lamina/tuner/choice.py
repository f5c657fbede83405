"""The row to take: best by the objective among those that are right, the simplest among equals."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.errors import BadArgument
from lamina.tuner.objective import Objective
from lamina.tuner.values import CHOOSABLE, Figures, Row

__all__ = ["ALIKE", "choose", "pareto"]

ALIKE = 0.02
"""Candidates nearer to each other than this, as a fraction of the better one's figure, are called equal."""


def choose(rows: Sequence[Row], objective: Objective) -> Row:
    """The row that ``objective`` prefers; eager's, where it keeps the limits and nothing is better beyond noise.

    Raises ``BadArgument`` if no row that was timed keeps the limits, with what is nearest.
    """
    timed = [(row, row.figures) for row in rows if row.figures is not None and row.verdict in CHOOSABLE]
    allowed = [(row, figures) for row, figures in timed if not objective.broken_by(figures)]
    if not allowed:
        why = "; ".join(f"{row.candidate.name}: {objective.broken_by(f)}" for row, f in timed)
        raise BadArgument(f"no candidate keeps the limits of {objective}: {why}", remedy="allow more, or drop a limit")
    if objective.metric == "memory":
        return _least_memory(allowed)
    # What cannot be told from eager has eager's speed: a lucky median must not win.
    best_row, best = max(allowed, key=lambda pair: _speed(*pair))
    equals = [row for row, figures in allowed if _as_fast(row, figures, best_row, best)]
    return min(equals, key=lambda row: row.candidate.cost)


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
