"""Gradients of activation functions."""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import Node

from lamina.lower.activations import BETA, KAPPA, half_of, softplus_of
from lamina.lower.builder import Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.rules import rule
from lamina.lower.values import TensorValue

__all__: list[str] = []

_ROOT_HALF = 0.7071067811865476
_ROOT_2PI = 0.3989422804014327
_SIXTH = 1.0 / 6.0


def _gelu_tanh(g: Value, v: Value) -> Value:
    cube = v * v * v
    inner = ((v + cube * KAPPA) * BETA).op("tanh")
    slope = (v * v * (3.0 * KAPPA) + 1.0) * BETA
    left = (inner + 1.0) * 0.5
    right = v * 0.5 * (1.0 - inner * inner) * slope
    return g * (left + right)


def _gelu_erf(g: Value, v: Value) -> Value:
    cdf = ((v * _ROOT_HALF).op("erf") + 1.0) * 0.5
    density = (v * v * -0.5).op("exp") * _ROOT_2PI
    return g * (cdf + v * density)


@rule("aten.gelu_backward.default")
def gelu_backward(
    low: Lowering, node: Node, grad: TensorValue, x: TensorValue, approximate: str = "none"
) -> TensorValue:
    return low.pointwise(node, _gelu_tanh if approximate == "tanh" else _gelu_erf, grad, x)


def _silu(g: Value, v: Value) -> Value:
    s = v.op("sigmoid")
    return g * s * (v * (1.0 - s) + 1.0)


def _mish(g: Value, v: Value) -> Value:
    t = softplus_of(v).op("tanh")
    return g * (t + v * v.op("sigmoid") * (1.0 - t * t))


def _hardswish(g: Value, v: Value) -> Value:
    where = v.builder.where
    return where(v <= -3.0, 0.0, where(v < 3.0, g * (v / 3.0 + 0.5), g))


def _hardsigmoid(g: Value, v: Value) -> Value:
    return v.builder.where((v > -3.0) & (v < 3.0), g * _SIXTH, 0.0)


def _register(target: str, function: Callable[[Value, Value], Value]) -> None:
    @rule(f"aten.{target}_backward.default")
    def backward(low: Lowering, node: Node, grad: TensorValue, x: TensorValue) -> TensorValue:
        return low.pointwise(node, function, grad, x)


_register("silu", _silu)
_register("mish", _mish)
_register("hardswish", _hardswish)
_register("hardsigmoid", _hardsigmoid)
_register("sigmoid", lambda g, y: g * (1.0 - y) * y)
_register("tanh", lambda g, y: g * (1.0 - y * y))


@rule("aten.threshold_backward.default")
def threshold_backward(low: Lowering, node: Node, grad: TensorValue, x: TensorValue, limit: float) -> TensorValue:
    return low.pointwise(node, lambda g, v: v.builder.where(v <= limit, 0, g), grad, x)


@rule("aten.hardtanh_backward.default")
def hardtanh_backward(
    low: Lowering, node: Node, grad: TensorValue, x: TensorValue, min_val: float, max_val: float
) -> TensorValue:
    return low.pointwise(node, lambda g, v: v.builder.where((v <= min_val) | (v >= max_val), 0.0, g), grad, x)


@rule("aten.elu_backward.default")
def elu_backward(
    low: Lowering,
    node: Node,
    grad: TensorValue,
    alpha: float,
    scale: float,
    input_scale: float,
    is_result: bool,
    x: TensorValue,
) -> TensorValue:
    negative = alpha * scale

    def body(g: Value, v: Value) -> Value:
        if is_result:
            below = g * input_scale * (v + negative)
        else:
            below = g * (input_scale * negative) * (v * input_scale).op("exp")
        return v.builder.where(v <= 0, below, g * scale)

    return low.pointwise(node, body, grad, x)


@rule("aten.leaky_relu_backward.default")
def leaky_relu_backward(
    low: Lowering, node: Node, grad: TensorValue, x: TensorValue, slope: float, is_result: bool
) -> TensorValue:
    return low.pointwise(node, lambda g, v: v.builder.where(v > 0, g, g * slope), grad, x)


@rule("aten.softplus_backward.default")
def softplus_backward(
    low: Lowering, node: Node, grad: TensorValue, x: TensorValue, beta: float, threshold: float
) -> TensorValue:
    def body(g: Value, v: Value) -> Value:
        scaled = v * beta
        return v.builder.where(scaled > threshold, g, g * scaled.op("sigmoid"))

    return low.pointwise(node, body, grad, x)


@rule("aten.log_sigmoid_backward.default")
def log_sigmoid_backward(
    low: Lowering, node: Node, grad: TensorValue, x: TensorValue, saved: TensorValue
) -> TensorValue:
    """The saved exponential is not read: computing it again costs less than loading it."""
    return low.pointwise(node, lambda g, v: g * (-v).op("sigmoid"), grad, x)


@rule("aten.hardshrink_backward.default", "aten.softshrink_backward.default")
def shrink_backward(low: Lowering, node: Node, grad: TensorValue, x: TensorValue, lambd: float) -> TensorValue:
    return low.pointwise(node, lambda g, v: v.builder.where((v >= -lambd) & (v <= lambd), 0.0, g), grad, x)


@rule("aten.rrelu_with_noise_backward.default")
def rrelu_backward(
    low: Lowering,
    node: Node,
    grad: TensorValue,
    x: TensorValue,
    noise: TensorValue,
    lower: float,
    upper: float,
    training: bool,
    is_result: bool,
) -> TensorValue:
    if training and upper - lower > 1e-6:
        return low.pointwise(node, lambda g, n: g * n, grad, noise)
    return leaky_relu_backward(low, node, grad, x, (lower + upper) / 2, is_result)


@rule("aten._prelu_kernel_backward.default")
def prelu_backward(
    low: Lowering, node: Node, grad: TensorValue, x: TensorValue, weight: TensorValue
) -> list[TensorValue]:
    outs = [low.result(node, 0), low.result(node, 1)]
    low.plain(x.dtype)
    b = low.nest(node, outs[0].shape)
    g, v, w = (low.operand(b, t, opmath(x.dtype)) for t in (grad, x, weight))
    b.store(outs[0], b.where(v > 0, g, w * g))
    b.store(outs[1], b.where(v > 0, 0.0, v * g))
    low.finish(b)
    return outs


@rule("aten.glu_backward.default")
def glu_backward(low: Lowering, node: Node, grad: TensorValue, x: TensorValue, dim: int) -> TensorValue:
    out = low.result(node)
    low.plain(out.dtype)
    b = low.nest(node, grad.shape)
    kin = opmath(x.dtype)
    places = [half_of(x, dim % x.rank, b.axes, second) for second in (False, True)]
    first, second = (b.load(x, place).to(kin) for place in places)
    g, gate = b.load(grad).to(kin), second.op("sigmoid")
    b.store(out, g * gate, places[0])
    b.store(out, g * first * gate * (1.0 - gate), places[1])
    low.finish(b)
    return out
