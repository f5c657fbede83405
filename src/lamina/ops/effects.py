"""Checks."""

from __future__ import annotations

from lamina.ops.row import EFFECT, NUMBER, Row, rows

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    *rows(EFFECT, "_assert_async.msg"),
    *rows(
        NUMBER,
        "sym_is_contiguous sym_numel sym_size.int sym_stride.int sym_storage_offset",
        reason="a property of a tensor as a Python number; lowering reads it off the graph",
    ),
)
