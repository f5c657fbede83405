"""Operations that tracing takes apart: captured calls have their names, graphs of operators never hold them."""

from __future__ import annotations

from lamina.ops.row import GATHER, POINTWISE, VIEW, WINDOW, Row, rows

__all__ = ["ROWS"]

_REASON = "a composite that tracing takes apart"

ROWS: tuple[Row, ...] = (
    *rows(VIEW, "expand_as flatten.using_ints numpy_T unflatten.int view_as", reason=_REASON),
    *rows(POINTWISE, "to.dtype|device|dtype_layout|other type_as", work=0.2, reason=_REASON),
    *rows(POINTWISE, "float_power.Tensor_Tensor|Tensor_Scalar|Scalar", reason=_REASON),
    *rows(GATHER, "one_hot repeat_interleave.self_int|self_Tensor", work=1.0, reason=_REASON),
    *rows(GATHER, "take_along_dim", work=2.0, reason=_REASON),
    *rows(WINDOW, "adaptive_avg_pool1d avg_pool1d upsample_bilinear2d.vec upsample_nearest2d.vec", reason=_REASON),
)
