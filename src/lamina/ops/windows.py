"""Padding, pooling and resampling."""

from __future__ import annotations

from lamina.ops.row import GATHER, WINDOW, Row, rows

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    *rows(
        GATHER,
        "constant_pad_nd reflection_pad1d replication_pad1d reflection_pad2d replication_pad2d",
        work=1.0,
    ),
    *rows(
        GATHER,
        """
        reflection_pad3d replication_pad3d upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
        _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d
        """,
        work=1.0,
    ),
    *rows(
        WINDOW,
        """
        reflection_pad1d_backward replication_pad1d_backward reflection_pad2d_backward
        replication_pad2d_backward reflection_pad3d_backward replication_pad3d_backward
        max_pool2d_with_indices lamina.max_pool2d_with_offsets max_pool3d_with_indices
        lamina.max_pool2d_offsets_backward max_pool2d_with_indices_backward max_pool3d_with_indices_backward
        avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward avg_pool3d
        avg_pool3d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward upsample_nearest1d_backward
        _upsample_nearest_exact1d_backward upsample_nearest2d_backward _upsample_nearest_exact2d_backward
        upsample_nearest3d_backward _upsample_nearest_exact3d_backward upsample_linear1d upsample_bilinear2d
        upsample_trilinear3d upsample_bicubic2d upsample_linear1d_backward upsample_bilinear2d_backward
        upsample_trilinear3d_backward upsample_bicubic2d_backward
        """,
    ),
    *rows(
        WINDOW,
        "grid_sampler_2d grid_sampler_3d",
        reason="each element reads at places that another tensor gives, several at a time",
    ),
)
