"""Charts of rows as SVG: what is best in latency and memory, and the timings as they were taken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from lamina.tuner.choice import pareto
from lamina.tuner.table import duration, size
from lamina.tuner.values import Figures, Row

__all__ = ["pareto_chart", "timings_chart"]

_WIDE, _HIGH, _EDGE = 720, 320, 56
"""Size of the chart and of its margins in pixels."""
_STRIP = 46
"""Height of a chart of timings in pixels."""


class _Scale:
    """Places on an axis for values, with a twentieth of their span free on both sides; ``log`` for equal ratios."""

    def __init__(self, values: Sequence[float], start: float, end: float, log: bool = False) -> None:
        self.log = log
        low, high = self._told(min(values)), self._told(max(values))
        span = (high - low) or abs(high) or 1.0
        self.low, self.high = low - span / 20, high + span / 20
        if not log:
            self.low = max(0.0, self.low)
        self.start, self.end = start, end

    def _told(self, value: float) -> float:
        return math.log(max(value, 1e-9)) if self.log else value

    def at(self, value: float) -> float:
        """The pixel of a value; of one beyond the axis, the end of the axis."""
        share = (self._told(value) - self.low) / ((self.high - self.low) or 1.0)
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))

    def ticks(self, count: int = 5) -> list[float]:
        """Values at equal distances."""
        found = [self.low + (self.high - self.low) * k / (count - 1) for k in range(count)]
        return [math.exp(value) for value in found] if self.log else found


def pareto_chart(rows: Sequence[Row], chosen: Row) -> str:
    """Latency to the right, in equal ratios, and peak memory upwards; a line through the rows that no other beats.

    Where memory was not measured of each row, the largest error stands upwards.
    """
    timed = [(row, row.figures) for row in rows if row.figures is not None]
    memory = all(f.peak_memory is not None for _, f in timed)

    def height(figures: Figures) -> float:
        return float(figures.peak_memory or 0.0) if memory else figures.error

    across = _Scale([f.p50 for _, f in timed], _EDGE + 20, _WIDE - 20, log=True)
    up = _Scale([height(f) for _, f in timed], _HIGH - _EDGE, 20)
    lines = [_text(across.at(v), _HIGH - _EDGE + 20, duration(v), "middle") for v in across.ticks()]
    lines += [_text(_EDGE + 10, up.at(v) + 4, size(v) if memory else f"{v:.0e}", "end") for v in up.ticks()]
    lines.append(_text(_WIDE / 2, _HIGH - 12, "median of a call", "middle"))
    lines.append(_text(4, 12, "peak memory" if memory else "largest error", "start"))
    front = sorted(pareto(rows), key=lambda row: row.figures.p50 if row.figures else 0.0)
    places = [f"{across.at(r.figures.p50):.1f},{up.at(height(r.figures)):.1f}" for r in front if r.figures]
    lines.append(f'<polyline points="{" ".join(places)}" fill="none" stroke="var(--good)" stroke-width="1.5"/>')
    for row, figures in timed:
        x, y = across.at(figures.p50), up.at(height(figures))
        color = "good" if row is chosen else "accent" if row in front else "faint"
        told = f"{row.candidate.name}: {duration(figures.p50)}, {size(figures.peak_memory)}, {row.verdict}"
        lines.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="var(--{color})"><title>{escape(told)}</title></circle>'
        )
        if row is chosen or row in front:
            right = x > _WIDE * 0.7
            lines.append(_text(x - 9 if right else x + 9, y - 7, row.candidate.name, "end" if right else "start"))
    return _svg(_WIDE, _HIGH, lines, "latency and memory of each row")


def timings_chart(figures: Figures) -> str:
    """Each timing of the candidate and of eager in the order in which they were taken; the axis starts at 0."""
    across = _Scale([0.0, float(max(len(figures.timings), len(figures.baseline_timings), 2) - 1)], 4, _WIDE / 2 - 4)
    highest = sorted((*figures.timings, *figures.baseline_timings))
    # One late call in a hundred would press all others to the ground; it is drawn at the upper edge.
    up = _Scale([0.0, highest[int(len(highest) * 0.98)] if highest else 1.0], _STRIP - 4, 4)
    lines = []
    for color, times in (("faint", figures.baseline_timings), ("accent", figures.timings)):
        lines += [
            f'<circle cx="{across.at(k):.1f}" cy="{up.at(t):.1f}" r="1.6" fill="var(--{color})"/>'
            for k, t in enumerate(times)
        ]
    return _svg(_WIDE // 2, _STRIP, lines, "timings of the candidate and of eager")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" fill="var(--faint)" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _svg(width: int, height: int, lines: Sequence[str], label: str) -> str:
    inside = "".join(lines)
    return f'<svg role="img" aria-label="{label}" viewBox="0 0 {width} {height}" width="{width}">{inside}</svg>'
