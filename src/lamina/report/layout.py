"""Where the boxes of a map stand: rows by the longest way to a box, in each row near what they are joined to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Box", "placed"]

_HEIGHT, _ROW, _GAP = 54, 96, 24
"""Pixels: a box, from row to row, between boxes of a row."""
_SWEEPS = 4
"""How often the order within rows is improved, down and up in turns."""


@dataclass(frozen=True, slots=True)
class Box:
    """A box with its upper left corner and size, in pixels."""

    x: int
    y: int
    width: int
    height: int = _HEIGHT


def placed(widths: Mapping[str, int], edges: Sequence[tuple[str, str]]) -> dict[str, Box]:
    """Places for boxes of ``widths``, given in an order in which every edge points forward. Linear in the edges."""
    before: dict[str, list[str]] = {name: [] for name in widths}
    after: dict[str, list[str]] = {name: [] for name in widths}
    for source, target in dict.fromkeys(edges):
        if source != target:
            before[target].append(source)
            after[source].append(target)
    rows = _rows(widths, before)
    centre: dict[str, float] = {}
    for row in rows:
        _spread(row, widths, centre, {})
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            near = before if down else after
            wanted = {n: sum(centre[o] for o in near[n]) / len(near[n]) for n in row if near[n]}
            row.sort(key=lambda name: wanted.get(name, centre[name]))
            _spread(row, widths, centre, wanted)
    least = min((centre[n] - widths[n] / 2 for n in widths), default=0.0)
    return {
        name: Box(round(centre[name] - widths[name] / 2 - least), number * _ROW, widths[name])
        for number, row in enumerate(rows)
        for name in row
    }


def _rows(widths: Mapping[str, int], before: Mapping[str, Sequence[str]]) -> list[list[str]]:
    row: dict[str, int] = {}
    for name in widths:
        row[name] = 1 + max((row[other] for other in before[name]), default=-1)
    rows: list[list[str]] = [[] for _ in range(1 + max(row.values(), default=-1))]
    for name, number in row.items():
        rows[number].append(name)
    return rows


def _spread(
    row: Sequence[str], widths: Mapping[str, int], centre: dict[str, float], wanted: Mapping[str, float]
) -> None:
    """Put a row's boxes beside each other in their order, as near to where they are wanted as their widths allow."""
    free = float("-inf")
    for name in row:
        at = max(wanted.get(name, centre.get(name, 0.0)), free + widths[name] / 2)
        centre[name] = at
        free = at + widths[name] / 2 + _GAP
    if row:
        drift = sum(centre[n] - wanted.get(n, centre[n]) for n in row) / len(row)
        for name in row:
            centre[name] -= drift
