"""Operations that tracing takes apart: captured calls have their names, graphs of operators never hold them."""

from __future__ import annotations

from lamina.ops.row import GATHER, POINTWISE, VIEW, WINDOW, Row, rows

__all__ = ["REASON", "ROWS"]

REASON = "a composite that tracing takes apart"

ROWS: tuple[Row, ...] = (
    *rows(VIEW, "expand_as flatten.using_ints numpy_T unflatten.int view_as", reason=REASON),
    *rows(POINTWISE, "to.dtype|device|dtype_layout|other", work=0.2, reason=REASON),
    *rows(POINTWISE, "type_as", work=0.2, shares=True, reason=REASON),
    *rows(POINTWISE, "special_exp2", same_as="aten.exp2.default"),
    *rows(POINTWISE, "special_expm1", same_as="aten.expm1.default"),
    *rows(POINTWISE, "special_log1p", same_as="aten.log1p.default"),
    *rows(POINTWISE, "absolute", same_as="aten.abs.default"),
    *rows(POINTWISE, "greater.Tensor", same_as="aten.gt.Tensor"),
    *rows(POINTWISE, "less.Tensor", same_as="aten.lt.Tensor"),
    *rows(POINTWISE, "float_power.Tensor_Tensor|Tensor_Scalar|Scalar", reason=REASON),
    *rows(GATHER, "one_hot repeat_interleave.self_int|self_Tensor", work=1.0, reason=REASON),
    *rows(GATHER, "take_along_dim", work=2.0, reason=REASON),
    *rows(WINDOW, "adaptive_avg_pool1d avg_pool1d upsample_bilinear2d.vec upsample_nearest2d.vec", reason=REASON),
)
