"""Tensors made of numbers, copies and conversions."""

from __future__ import annotations

from lamina.ops.row import CREATION, POINTWISE, Row, rows

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    *rows(
        CREATION,
        """
        full full_like prims.full prims.full_like new_full scalar_tensor prims.scalar_tensor ones ones_like
        new_ones zeros zeros_like new_zeros empty.memory_format empty_like new_empty empty_strided
        prims.empty prims.empty_strided arange.start_step|start|default linspace eye.default|m
        """,
        work=0.5,
    ),
    *rows(
        CREATION,
        "linspace.Tensor_Tensor|Tensor_Scalar|Scalar_Tensor logspace.Tensor_Tensor|Tensor_Scalar|Scalar_Tensor",
        reason="the ends are known only at run time",
    ),
    *rows(
        CREATION,
        "_efficientzerotensor new_empty_strided empty_permuted prims.empty_permuted prims.iota",
    ),
    *rows(
        POINTWISE,
        "fill.Scalar|Tensor prims.fill zero _to_copy clone lift_fresh_copy prims.clone contiguous copy",
        work=0.2,
    ),
    *rows(POINTWISE, "triu tril", work=0.5),
    *rows(POINTWISE, "prims.convert_element_type copy_"),
    *rows(POINTWISE, "complex polar", reason="complex numbers are left to the library"),
)
