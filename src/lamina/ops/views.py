"""Views, and views as copies."""

from __future__ import annotations

from lamina.ops.row import GATHER, KEPT, PART, PERMUTED, REPEATED, RESHAPED, SCATTER, UNIT, VIEW, Row, rows

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    *rows(
        GATHER,
        """
        view_copy alias_copy detach_copy permute_copy transpose_copy.int t_copy expand_copy unsqueeze_copy
        squeeze_copy.default|dim|dims slice_copy.Tensor select_copy.int split_copy.Tensor
        split_with_sizes_copy unbind_copy.int diagonal_copy unfold_copy narrow_copy
        """,
        work=0.2,
    ),
    *rows(SCATTER, "as_strided_scatter", by_strides=True),
    *rows(
        VIEW,
        """
        _conj _neg_view prims.transpose movedim.int moveaxis.int prims.squeeze prims.broadcast_in_dim split.Tensor
        split_with_sizes chunk unsafe_split.Tensor unsafe_split_with_sizes unsafe_chunk unbind.int unfold
        """,
    ),
    *rows(VIEW, "alias detach lift lift_fresh", elements=KEPT),
    *rows(VIEW, "view _unsafe_view reshape _reshape_alias", elements=RESHAPED),
    *rows(VIEW, "unsqueeze squeeze.default|dim|dims", elements=UNIT),
    *rows(VIEW, "permute transpose.int t", elements=PERMUTED),
    *rows(VIEW, "expand", elements=REPEATED),
    *rows(VIEW, "slice.Tensor narrow select.int diagonal", elements=PART),
    *rows(VIEW, "as_strided", by_strides=True),
    *rows(VIEW, "view_as_real view_as_complex", reason="complex numbers are left to the library"),
    *rows(VIEW, "view.dtype", reason="the bits of a number read as another type"),
)
