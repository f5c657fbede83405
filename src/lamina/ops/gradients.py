"""Gradients of activation functions."""

from __future__ import annotations

from lamina.ops.activations import BETA, KAPPA, ROOT_HALF, softplus
from lamina.ops.element import Element, where
from lamina.ops.row import POINTWISE, Row, rows

__all__ = ["ROWS"]

_ROOT_2PI = 0.3989422804014327
"""One over the square root of 2 pi, rounded to float64: the density of the normal distribution at 0."""
_SIXTH = 1.0 / 6.0
"""The slope of ``hardsigmoid`` between its kinks."""


def _gelu_tanh(g: Element, v: Element) -> Element:
    cube = v * v * v
    inner = ((v + cube * KAPPA) * BETA).op("tanh")
    slope = (v * v * (3.0 * KAPPA) + 1.0) * BETA
    left = (inner + 1.0) * 0.5
    right = v * 0.5 * (1.0 - inner * inner) * slope
    return g * (left + right)


def _gelu_erf(g: Element, v: Element) -> Element:
    cdf = ((v * ROOT_HALF).op("erf") + 1.0) * 0.5
    density = (v * v * -0.5).op("exp") * _ROOT_2PI
    return g * (cdf + v * density)


def _gelu(g: Element, v: Element, approximate: str = "none") -> Element:
    """The gradient of GELU, or of its approximation by "tanh"."""
    return _gelu_tanh(g, v) if approximate == "tanh" else _gelu_erf(g, v)


def _silu(g: Element, v: Element) -> Element:
    s = v.op("sigmoid")
    return g * s * (v * (1.0 - s) + 1.0)


def _mish(g: Element, v: Element) -> Element:
    t = softplus(v).op("tanh")
    return g * (t + v * v.op("sigmoid") * (1.0 - t * t))


def _hardswish(g: Element, v: Element) -> Element:
    """No comparison holds of a NaN, which comes through."""
    return where(v <= -3.0, 0.0, where(v >= 3.0, g, g * (v / 3.0 + 0.5)))


def _hardsigmoid(g: Element, v: Element) -> Element:
    return where((v > -3.0) & (v < 3.0), g * _SIXTH, 0.0)


def _threshold(g: Element, v: Element, threshold: float) -> Element:
    return where(v <= threshold, 0, g)


def _hardtanh(g: Element, v: Element, min_val: float, max_val: float) -> Element:
    return where((v <= min_val) | (v >= max_val), 0.0, g)


def _elu(g: Element, alpha: float, scale: float, input_scale: float, is_result: bool, v: Element) -> Element:
    negative = alpha * scale
    if is_result:
        below = g * input_scale * (v + negative)
    else:
        below = g * (input_scale * negative) * (v * input_scale).op("exp")
    return where(v > 0, g * scale, below)  # a NaN comes through


def _leaky_relu(g: Element, v: Element, negative_slope: float, self_is_result: bool) -> Element:
    """The gradient of a leaky ReLU, of whose operand and result the signs are the same."""
    return where(v > 0, g, g * negative_slope)


def _softplus(g: Element, v: Element, beta: float, threshold: float) -> Element:
    scaled = v * beta
    return where(scaled > threshold, g, g * scaled.op("sigmoid"))


def _shrink(g: Element, v: Element, lambd: float) -> Element:
    return where((v >= -lambd) & (v <= lambd), 0.0, g)


ROWS: tuple[Row, ...] = (
    *rows(POINTWISE, "threshold_backward", work=0.2, formula=_threshold),
    *rows(POINTWISE, "hardtanh_backward", work=0.2, formula=_hardtanh),
    *rows(POINTWISE, "leaky_relu_backward", work=0.2, formula=_leaky_relu),
    *rows(POINTWISE, "_prelu_kernel_backward", work=0.2),
    *rows(POINTWISE, "hardswish_backward", work=0.5, formula=_hardswish),
    *rows(POINTWISE, "hardsigmoid_backward", work=0.5, formula=_hardsigmoid),
    *rows(POINTWISE, "sigmoid_backward", work=4.0, formula=lambda g, y: g * (1.0 - y) * y),
    *rows(POINTWISE, "elu_backward", work=4.0, formula=_elu),
    *rows(POINTWISE, "softplus_backward", work=4.0, formula=_softplus),
    *rows(POINTWISE, "log_sigmoid_backward", work=4.0),
    *rows(POINTWISE, "glu_backward", work=4.0),
    *rows(POINTWISE, "silu_backward", work=6.0, formula=_silu),
    *rows(POINTWISE, "gelu_backward", work=12.0, formula=_gelu),
    *rows(POINTWISE, "mish_backward", work=12.0, formula=_mish),
    *rows(POINTWISE, "tanh_backward", work=12.0, formula=lambda g, y: g * (1.0 - y * y)),
    *rows(POINTWISE, "hardshrink_backward softshrink_backward", work=0.2, formula=_shrink),
    *rows(POINTWISE, "rrelu_with_noise_backward", work=0.2),
)
