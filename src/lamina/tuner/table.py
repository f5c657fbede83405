"""Rows as a table for a terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence

from lamina.base.tables import Table, plain_console
from lamina.tuner.choice import pareto
from lamina.tuner.values import Figures, Row

__all__ = ["SPENT", "duration", "figures_told", "rows_table", "size", "table_text"]

SPENT = "the budget was spent before"
"""Why a candidate was not tried."""
_SEVERAL = 3
"""Candidates not tried from which on they are one row."""
_WIDTH = 150
"""Characters of a line of a table that no terminal shows."""


def rows_table(rows: Sequence[Row], chosen: Row | None, title: str) -> Table:
    """A row for each candidate; "*" marks the chosen one, "P" those of which none is better in all respects. Those for
    which the budget had nothing left are one row.
    """
    table = Table(title=title, title_justify="left")
    names = ("", "candidate", "verdict", "speed", "p50", "p99", "per second", "memory", "error", "build", "reason")
    for name in names:
        numeric = name in ("p50", "p99", "per second", "memory", "error", "build")
        table.add_column(name, overflow="fold", justify="right" if numeric else "left")
    best = {id(row) for row in pareto(rows)}
    left = [row for row in rows if row.verdict == "not tried" and row.reason == SPENT]
    for row in rows if len(left) < _SEVERAL else [row for row in rows if row not in left]:
        marks = ("*" if row is chosen else "") + ("P" if id(row) in best else "")
        table.add_row(marks, row.candidate.name, row.verdict, *figures_told(row.figures), row.reason)
    if len(left) >= _SEVERAL:
        more = f"{SPENT}; tune again, which measures these alone"
        table.add_row("", f"{left[0].candidate.name} and {len(left) - 1} more", "not tried", *figures_told(None), more)
    return table


def table_text(table: Table) -> str:
    """A table as text."""
    out = io.StringIO()
    plain_console(file=out, width=_WIDTH).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def figures_told(figures: Figures | None) -> tuple[str, ...]:
    """What a table says of a row that was timed; empty texts for others."""
    if figures is None:
        return ("",) * 7
    return (
        str(figures.speedup),
        duration(figures.p50),
        duration(figures.p99),
        f"{figures.throughput:.4g}",
        size(figures.peak_memory),
        f"{figures.error:.1e}",
        duration(figures.build_seconds),
    )


def duration(seconds: float) -> str:
    """A time in a unit that suits it."""
    factor, unit = next(((f, u) for f, u in ((1.0, "s"), (1e3, "ms")) if seconds * f >= 1.0), (1e6, "µs"))
    return f"{seconds * factor:.3g} {unit}"


def size(count: float | None) -> str:
    """A number of bytes in a unit that suits it."""
    if count is None:
        return "?"
    factor, unit = next(((f, u) for f, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")) if count >= f), (1.0, "B"))
    return f"{count / factor:.3g} {unit}"
