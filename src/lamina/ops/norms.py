"""Normalisations and their gradients."""

from __future__ import annotations

import math

from lamina.ops.row import POINTWISE, PRODUCT, REDUCTION, Row, rows

__all__ = ["ROWS"]

_STATISTICS = math.inf
"""Batch norms read all images for each channel before they give an element: with them computed again, training steps of
programs that save 0.6 to 0.67 of the bytes so took 1.07 and 1.13 times as long (one CPU thread, float32)."""

ROWS: tuple[Row, ...] = (
    *rows(REDUCTION, "native_layer_norm", work=0.8, quick=True),
    *rows(REDUCTION, "native_batch_norm", work=_STATISTICS, quick=True),
    *rows(
        REDUCTION,
        """
        _native_batch_norm_legit_functional _batch_norm_with_update_functional _native_batch_norm_legit.no_stats
        """,
        work=_STATISTICS,
    ),
    *rows(
        REDUCTION,
        """
        native_layer_norm_backward native_group_norm native_group_norm_backward _fused_rms_norm
        _fused_rms_norm_backward native_batch_norm_backward renorm
        """,
        work=0.8,
    ),
    *rows(POINTWISE, "_native_batch_norm_legit_no_training", work=1.0),
    *rows(PRODUCT, "_weight_norm_interface", becomes="a norm of the weight and a product"),
)
