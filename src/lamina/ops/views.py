"""Views, and views as copies."""

from __future__ import annotations

from lamina.ops.row import GATHER, SCATTER, VIEW, Row, rows

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    *rows(
        GATHER,
        """
        view_copy alias_copy detach_copy permute_copy transpose_copy.int t_copy expand_copy unsqueeze_copy
        squeeze_copy.default|dim|dims slice_copy.Tensor select_copy.int split_copy.Tensor
        split_with_sizes_copy unbind_copy.int diagonal_copy unfold_copy narrow_copy
        """,
    ),
    *rows(SCATTER, "as_strided_scatter"),
    *rows(
        VIEW,
        """
        view _unsafe_view reshape _reshape_alias alias detach lift lift_fresh _conj _neg_view permute
        prims.transpose transpose.int t movedim.int expand unsqueeze squeeze.default|dim|dims prims.squeeze
        slice.Tensor narrow select.int split.Tensor split_with_sizes chunk unsafe_split.Tensor
        unsafe_split_with_sizes unsafe_chunk unbind.int diagonal unfold as_strided
        """,
    ),
    *rows(VIEW, "view_as_real view_as_complex", reason="complex numbers are left to the library"),
    *rows(VIEW, "view.dtype", reason="the bits of a number read as another type"),
    *rows(VIEW, "moveaxis.int prims.broadcast_in_dim"),
)
