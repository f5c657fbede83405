"""Activation functions. The formulas are eager's, so that NaN, infinities and kinks agree."""

from __future__ import annotations

from lamina.ops.element import Element, clamped, where
from lamina.ops.row import POINTWISE, Row, rows

__all__ = ["BETA", "KAPPA", "ROOT_HALF", "ROWS", "softplus"]

KAPPA = 0.044715
"""The cubic coefficient of the tanh form of GELU."""
BETA = 0.7978845608028654
"""The square root of 2 / pi."""
ROOT_HALF = 0.7071067811865476
"""The square root of 1/2, rounded to float64."""
_SELU = (1.6732632423543772, 1.0507009873554805)


def softplus(v: Element, beta: float = 1.0, threshold: float = 20.0) -> Element:
    """``log(1 + exp(beta v)) / beta``, which is ``v`` itself beyond the threshold."""
    scaled = v if beta == 1 else v * beta
    soft = scaled.op("exp").op("log1p")
    return where(scaled > threshold, v, soft if beta == 1 else soft / beta)


def _gelu(v: Element, approximate: str = "none") -> Element:
    """``v`` times the probability of a normal number below it, or the approximation of that by "tanh"."""
    if approximate == "tanh":
        inner = (v + v * v * v * KAPPA) * BETA
        return v * 0.5 * (inner.op("tanh") + 1.0)
    return v * 0.5 * ((v * ROOT_HALF).op("erf") + 1.0)


def _log_sigmoid(v: Element) -> Element:
    return v.op("minimum", 0.0) - (-v.op("abs")).op("exp").op("log1p")


def _elu(v: Element, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Element:
    inner = v if input_scale == 1 else v * input_scale
    return where(v < 0, inner.op("expm1") * (alpha * scale), v if scale == 1 else v * scale)


def _hardtanh(v: Element, min_val: float = -1, max_val: float = 1) -> Element:
    return clamped(v, min_val, max_val)


def _hardshrink(v: Element, lambd: float = 0.5) -> Element:
    return where((v >= -lambd) & (v <= lambd), 0.0, v)


def _softshrink(v: Element, lambd: float = 0.5) -> Element:
    return where(v > lambd, v - lambd, where(v < -lambd, v + lambd, v * 0.0))


def _leaky_relu(v: Element, negative_slope: float = 0.01) -> Element:
    return where(v > 0, v, v * negative_slope)


ROWS: tuple[Row, ...] = (
    *rows(POINTWISE, "relu", work=0.2, exact=True, formula=lambda v: v.op("relu")),
    *rows(POINTWISE, "relu6", work=0.2, formula=lambda v: clamped(v, 0, 6)),
    *rows(POINTWISE, "hardtanh", work=0.2, formula=_hardtanh),
    *rows(POINTWISE, "leaky_relu", work=0.2, formula=_leaky_relu),
    *rows(POINTWISE, "hardshrink", work=0.2, formula=_hardshrink),
    *rows(POINTWISE, "softshrink", work=0.2, formula=_softshrink),
    *rows(POINTWISE, "threshold", work=0.2, formula=lambda v, threshold, value: where(v <= threshold, value, v)),
    *rows(POINTWISE, "_prelu_kernel", work=0.2, formula=lambda v, weight: where(v > 0, v, v * weight)),
    *rows(POINTWISE, "hardsigmoid", work=0.5, formula=lambda v: clamped(v + 3.0, 0.0, 6.0) / 6.0),
    *rows(POINTWISE, "hardswish", work=0.5, formula=lambda v: v * clamped(v + 3.0, 0.0, 6.0) / 6.0),
    *rows(POINTWISE, "silu", work=4.0, formula=lambda v: v * v.op("sigmoid")),
    *rows(POINTWISE, "elu", work=4.0, formula=_elu),
    *rows(POINTWISE, "celu", work=4.0, formula=lambda v, alpha=1.0: _elu(v, alpha, 1.0, 1.0 / alpha)),
    *rows(POINTWISE, "selu", work=4.0, formula=lambda v: _elu(v, *_SELU)),
    *rows(POINTWISE, "glu", work=4.0),
    *rows(POINTWISE, "softplus", work=6.0, formula=softplus),
    *rows(POINTWISE, "log_sigmoid", work=6.0, formula=_log_sigmoid),
    *rows(POINTWISE, "log_sigmoid_forward", work=6.0),
    *rows(POINTWISE, "gelu", work=12.0, formula=_gelu),
    *rows(POINTWISE, "mish", work=12.0, formula=lambda v: v * v.op("exp").op("log1p").op("tanh")),
    *rows(POINTWISE, "rrelu_with_noise_functional", work=0.2),
)
