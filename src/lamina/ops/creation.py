"""Tensors made of numbers, copies and conversions."""

from __future__ import annotations

from lamina.ops.row import CREATION, EFFECT, KEPT, POINTWISE, Row, rows

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    *rows(
        CREATION,
        """
        full full_like prims.full prims.full_like new_full scalar_tensor prims.scalar_tensor ones ones_like
        new_ones zeros zeros_like new_zeros arange.start_step|start|default linspace eye.default|m
        """,
        work=0.5,
    ),
    *rows(
        CREATION,
        "empty.memory_format empty_like new_empty empty_strided prims.empty prims.empty_strided",
        work=0.5,
        unset=True,
    ),
    *rows(CREATION, "new_empty_strided empty_permuted prims.empty_permuted", work=0.5, unset=True),
    *rows(
        CREATION,
        "linspace.Tensor_Tensor|Tensor_Scalar|Scalar_Tensor logspace.Tensor_Tensor|Tensor_Scalar|Scalar_Tensor",
        reason="the ends are known only at run time",
    ),
    *rows(CREATION, "_efficientzerotensor prims.iota", work=0.5),
    *rows(POINTWISE, "fill.Scalar|Tensor prims.fill zero prims.clone", work=0.2),
    *rows(POINTWISE, "copy", work=0.2, any_dtype=True),
    *rows(POINTWISE, "_to_copy clone", work=0.2, elements=KEPT, any_dtype=True),
    *rows(POINTWISE, "lift_fresh_copy contiguous", work=0.2, elements=KEPT),
    *rows(POINTWISE, "triu tril", work=0.5),
    *rows(POINTWISE, "prims.convert_element_type", work=0.2),
    *rows(EFFECT, "copy_"),
    *rows(POINTWISE, "complex polar", reason="complex numbers are left to the library"),
)
