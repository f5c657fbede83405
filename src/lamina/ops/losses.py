"""Losses and their gradients."""

from __future__ import annotations

from lamina.ops.row import POINTWISE, REDUCTION, Row, rows

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    *rows(
        POINTWISE,
        """
        mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward
        soft_margin_loss soft_margin_loss_backward binary_cross_entropy binary_cross_entropy_backward
        binary_cross_entropy_with_logits kl_div
        """,
    ),
    *rows(
        REDUCTION,
        "nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward",
        work=0.3,
    ),
)
