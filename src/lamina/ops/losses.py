"""Losses and their gradients."""

from __future__ import annotations

from lamina.ops.row import POINTWISE, REDUCTION, Row, rows

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    *rows(POINTWISE, "mse_loss mse_loss_backward", work=0.2),
    *rows(POINTWISE, "smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward", work=0.5),
    *rows(POINTWISE, "soft_margin_loss binary_cross_entropy_with_logits", work=8.0),
    *rows(POINTWISE, "soft_margin_loss_backward", work=4.0),
    *rows(POINTWISE, "binary_cross_entropy", work=12.0),
    *rows(POINTWISE, "binary_cross_entropy_backward", work=1.0),
    *rows(POINTWISE, "kl_div", work=6.0),
    *rows(
        REDUCTION,
        "nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward",
        work=0.3,
    ),
)
