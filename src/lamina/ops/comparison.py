"""Comparisons, truth functions, bit operations, tests for special values, and selection by a mask."""

from __future__ import annotations

from lamina.ops.row import POINTWISE, Row, rows

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    *rows(
        POINTWISE,
        """
        eq.Tensor|Scalar prims.eq ne.Tensor|Scalar prims.ne lt.Tensor|Scalar prims.lt le.Tensor|Scalar
        prims.le gt.Tensor|Scalar prims.gt ge.Tensor|Scalar prims.ge logical_and logical_or logical_xor
        logical_not bitwise_and.Tensor|Scalar|Scalar_Tensor prims.bitwise_and
        bitwise_or.Tensor|Scalar|Scalar_Tensor prims.bitwise_or bitwise_xor.Tensor|Scalar|Scalar_Tensor
        prims.bitwise_xor bitwise_not prims.bitwise_not
        bitwise_left_shift.Tensor|Tensor_Scalar|Scalar_Tensor
        bitwise_right_shift.Tensor|Tensor_Scalar|Scalar_Tensor isnan isinf isposinf isneginf signbit
        prims.signbit where.self|ScalarOther|ScalarSelf|Scalar prims.where masked_fill.Scalar|Tensor
        """,
        work=0.2,
    ),
    *rows(
        POINTWISE,
        """
        __and__.Tensor|Scalar __or__.Tensor|Scalar __xor__.Tensor|Scalar __lshift__.Tensor|Scalar
        prims.shift_left __rshift__.Tensor|Scalar prims.shift_right_arithmetic isfinite prims.isfinite
        """,
    ),
)
