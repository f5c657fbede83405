"""Operations that fit no other file and have no lowering rule."""

from __future__ import annotations

from lamina.ops.row import DYNAMIC, REDUCTION, TRANSFORM, Row, rows

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    *rows(
        DYNAMIC,
        "nonzero masked_select repeat_interleave.Tensor _local_scalar_dense masked_scatter equal",
        reason="the size of the result, or its value as a Python number, depends on data",
    ),
    *rows(TRANSFORM, "_fft_c2r _fft_r2c", reason="Fourier transforms are complex and have their own library"),
    *rows(REDUCTION, "_embedding_bag", reason="bags are ragged: each row gathers another number of rows"),
    *rows(REDUCTION, "_embedding_bag_forward_only", work=2.0),
)
