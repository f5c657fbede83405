"""How 16-bit columns are reduced beside a contiguous axis that is kept: tiles of a program, parts of a column.

Measured on an H200 with batch norm's statistics and the sums of its backward at all shapes of a ResNet-50: programs of
four warps with tiles 64 columns wide, two or three to a processor at a time. A fourth waits for registers, and most
processors then wait for it.
"""

from __future__ import annotations

__all__ = ["COLUMNS", "parts_of_columns", "rows_of_tile"]

COLUMNS = 64
"""Columns of a tile: 128 bytes side by side."""
_AT_ONCE = 3
"""Programs of a processor that run at the same time."""
_JOINED = 1000
"""Parts whose joining, by the last program of each tile of columns, takes about as long as reducing them."""
_ALONE = 0.9
"""Speed of a program that has its processor to itself: not enough reads are under way."""
_EQUAL = 1.25
"""Parts of different lengths, whose points must be told from those beyond the last, are so much faster at least."""


def rows_of_tile(operands: int, written: bool) -> int:
    """Rows of a program's tile, by how many large operands it reads and whether it stores such a one."""
    return 32 if written else 64 if operands > 1 else 128


def parts_of_columns(points: int, tiles: int, rows: int, processors: int) -> int:
    """Into how many parts to cut ``points`` reduced points, with ``tiles`` tiles of columns side by side; 1 where none
    pays. Equal ones, unless there are none with which the processors are about as busy.

    The best keeps all processors busy equally long and fills its last tile of ``rows`` rows.
    """

    def share(parts: int) -> float:
        programs, each = parts * tiles, -(-points // parts)
        most = -(-programs // processors) * (-(-each // rows) * rows)
        speed = 1.0 if programs > processors else _ALONE
        return speed * points * tiles / (most * processors) / (1 + parts / _JOINED)

    most = min(_AT_ONCE * processors // tiles, points // rows)
    best = max(range(1, most + 1), key=share, default=1)
    equal = max((n for n in range(1, most + 1) if points % n == 0), key=share, default=1)
    return best if share(best) > _EQUAL * share(equal) else equal
