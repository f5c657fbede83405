"""Comparisons, truth functions, bit operations, tests for special values, and selection by a mask."""

from __future__ import annotations

from lamina.ops.row import POINTWISE, Row, rows

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    *rows(
        POINTWISE,
        """
        eq.Scalar prims.eq ne.Scalar prims.ne lt.Tensor|Scalar prims.lt le.Tensor|Scalar
        prims.le gt.Tensor|Scalar prims.gt ge.Tensor|Scalar prims.ge logical_xor
        logical_not bitwise_and.Scalar|Scalar_Tensor prims.bitwise_and
        bitwise_or.Scalar|Scalar_Tensor prims.bitwise_or bitwise_xor.Tensor|Scalar|Scalar_Tensor
        prims.bitwise_xor bitwise_not prims.bitwise_not
        bitwise_left_shift.Tensor|Tensor_Scalar|Scalar_Tensor
        bitwise_right_shift.Tensor|Tensor_Scalar|Scalar_Tensor isnan isinf isposinf isneginf signbit
        prims.signbit where.ScalarOther|ScalarSelf|Scalar prims.where masked_fill.Scalar|Tensor
        """,
        work=0.2,
    ),
    *rows(POINTWISE, "eq.Tensor ne.Tensor", work=0.2, commutes=True),
    *rows(POINTWISE, "logical_and logical_or bitwise_and.Tensor bitwise_or.Tensor", work=0.2, commutes=True),
    *rows(POINTWISE, "where.self", work=0.2, any_dtype=True),
    *rows(
        POINTWISE,
        """
        __and__.Tensor|Scalar __or__.Tensor|Scalar __xor__.Tensor|Scalar __lshift__.Tensor|Scalar
        prims.shift_left __rshift__.Tensor|Scalar prims.shift_right_arithmetic isfinite prims.isfinite
        """,
        work=0.2,
    ),
)
