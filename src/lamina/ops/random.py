"""Random numbers, and what draws them."""

from __future__ import annotations

from lamina.ops.row import EFFECT, POINTWISE, RANDOM, Row, rows

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    *rows(EFFECT, "lamina.unless_changed lamina.row_digest"),
    *rows(POINTWISE, "native_dropout_backward", work=0.2),
    *rows(POINTWISE, "lamina.philox_uniform", work=1.0),
    *rows(
        RANDOM,
        "rand randn randperm native_dropout rrelu lamina.philox_seed lamina.rng_state lamina.set_rng_state",
        reason="draws from eager's generator in eager's order",
    ),
)
