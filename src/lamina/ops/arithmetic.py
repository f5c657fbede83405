"""Arithmetic of two or three tensors, elementwise."""

from __future__ import annotations

from lamina.ops.row import POINTWISE, Row, rows

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    *rows(
        POINTWISE,
        """
        add.Tensor|Scalar prims.add sub.Tensor|Scalar prims.sub rsub.Tensor|Scalar mul.Tensor|Scalar
        prims.mul maximum prims.maximum minimum prims.minimum clamp.default|Tensor clamp_min.default|Tensor
        clamp_max.default|Tensor max.other min.other lerp.Scalar|Tensor addcmul
        """,
        work=0.2,
    ),
    *rows(
        POINTWISE,
        """
        div.Tensor|Scalar|Tensor_mode|Scalar_mode floor_divide.default|Scalar prims.div
        remainder.Tensor|Scalar|Scalar_Tensor prims.remainder fmod.Tensor|Scalar prims.fmod addcdiv
        """,
        work=1.0,
    ),
    *rows(POINTWISE, "addr", work=6.0),
    *rows(POINTWISE, "pow.Tensor_Tensor|Tensor_Scalar|Scalar prims.pow", work=12.0),
    *rows(POINTWISE, "true_divide.Tensor|Scalar clip.default|Tensor prims.fma"),
)
