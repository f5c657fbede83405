"""Arithmetic of two or three tensors, elementwise."""

from __future__ import annotations

from lamina.ops.row import POINTWISE, Row, rows

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    *rows(
        POINTWISE,
        """
        prims.add prims.sub prims.mul prims.maximum prims.minimum rsub.Tensor|Scalar lerp.Scalar|Tensor addcmul
        clamp.default|Tensor clamp_min.default|Tensor clamp_max.default|Tensor
        """,
        work=0.2,
    ),
    *rows(POINTWISE, "add.Tensor|Scalar", work=0.2, neutral=0, signed_zero=False),
    *rows(POINTWISE, "sub.Tensor|Scalar", work=0.2, neutral=0),
    *rows(POINTWISE, "mul.Tensor|Scalar", work=0.2, neutral=1),
    *rows(POINTWISE, "div.Tensor|Scalar", work=1.0, neutral=1),
    *rows(POINTWISE, "maximum minimum", work=0.2, commutes=True),
    *rows(POINTWISE, "max.other", same_as="aten.maximum.default"),
    *rows(POINTWISE, "min.other", same_as="aten.minimum.default"),
    *rows(
        POINTWISE,
        """
        div.Tensor_mode|Scalar_mode floor_divide.default|Scalar prims.div
        remainder.Tensor|Scalar|Scalar_Tensor prims.remainder fmod.Tensor|Scalar prims.fmod addcdiv
        """,
        work=1.0,
    ),
    *rows(POINTWISE, "addr", work=6.0),
    *rows(POINTWISE, "pow.Tensor_Tensor|Scalar prims.pow", work=12.0),
    *rows(POINTWISE, "pow.Tensor_Scalar", work=12.0, neutral=1),
    *rows(POINTWISE, "true_divide.Tensor", same_as="aten.div.Tensor"),
    *rows(POINTWISE, "true_divide.Scalar", same_as="aten.div.Scalar"),
    *rows(POINTWISE, "clip", same_as="aten.clamp.default"),
    *rows(POINTWISE, "clip.Tensor", same_as="aten.clamp.Tensor"),
    *rows(POINTWISE, "prims.fma", work=0.2),
)
