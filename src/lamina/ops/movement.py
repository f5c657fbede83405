"""Elements taken from, or put to, other places."""

from __future__ import annotations

from lamina.ops.row import GATHER, SCATTER, WINDOW, Row, rows

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    *rows(GATHER, "block_diag", becomes="zeros and concatenations"),
    *rows(GATHER, "slice_scatter select_scatter diagonal_scatter", work=0.2),
    *rows(
        GATHER,
        """
        pixel_shuffle pixel_unshuffle channel_shuffle cat prims.cat stack flip roll repeat diag_embed
        native_channel_shuffle im2col prims.rev rot90 slice_backward select_backward diagonal_backward
        """,
        work=1.0,
    ),
    *rows(GATHER, "index_select index.Tensor _unsafe_index.Tensor embedding", work=2.0),
    *rows(GATHER, "gather take", work=8.0),  # from a place for each element, which is read one by one
    *rows(
        SCATTER,
        """
        embedding_dense_backward unfold_backward index_put _unsafe_index_put
        scatter.src|value|reduce|value_reduce scatter_add scatter_reduce.two index_add index_copy
        index_fill.int_Scalar|int_Tensor put max_unpool2d max_unpool3d
        """,
    ),
    *rows(
        SCATTER,
        "index_reduce",
        reason="an input that several indices may reach is combined otherwise than by a sum",
    ),
    *rows(
        SCATTER,
        "grid_sampler_2d_backward grid_sampler_3d_backward",
        reason="each element reads at places that another tensor gives, several at a time",
    ),
    *rows(WINDOW, "col2im linalg_cross"),
)
