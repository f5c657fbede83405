"""Activation functions, forward. The formulas are eager's, so that NaN, infinities and kinks agree."""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import Node

from lamina.ir.index import Expr
from lamina.lower.builder import Value, opmath
from lamina.lower.context import Lowering, Operand
from lamina.lower.pointwise import not_above, not_below
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue

__all__ = ["BETA", "KAPPA", "clamped", "half_of", "softplus_of"]

KAPPA = 0.044715
"""The cubic coefficient of the tanh form of GELU."""
BETA = 0.7978845608028654
"""The square root of 2 / pi."""
_ROOT_HALF = 0.7071067811865476
_SELU = (1.6732632423543772, 1.0507009873554805)


def clamped(v: Value, low: float, high: float) -> Value:
    """``v`` held between two numbers; NaN stays, and so does a negative zero at a bound of zero."""
    return not_above(not_below(v, low), high)


def softplus_of(v: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    """``log(1 + exp(beta v)) / beta``, which is ``v`` itself beyond the threshold."""
    scaled = v if beta == 1 else v * beta
    soft = scaled.op("exp").op("log1p")
    return v.builder.where(scaled > threshold, v, soft if beta == 1 else soft / beta)


@rule("aten.relu.default")
def relu(low: Lowering, node: Node, x: TensorValue) -> TensorValue:
    return low.pointwise(node, lambda v: v.op("relu"), x)


@rule("aten.gelu.default")
def gelu(low: Lowering, node: Node, x: TensorValue, approximate: str = "none") -> TensorValue:
    def body(v: Value) -> Value:
        if approximate == "tanh":
            inner = (v + v * v * v * KAPPA) * BETA
            return v * 0.5 * (inner.op("tanh") + 1.0)
        return v * 0.5 * ((v * _ROOT_HALF).op("erf") + 1.0)

    return low.pointwise(node, body, x)


def _register(target: str, function: Callable[[Value], Value]) -> None:
    @rule(f"aten.{target}.default")
    def activation(low: Lowering, node: Node, x: TensorValue) -> TensorValue:
        return low.pointwise(node, function, x)


_register("silu", lambda v: v * v.op("sigmoid"))
_register("relu6", lambda v: clamped(v, 0, 6))
_register("hardsigmoid", lambda v: clamped(v + 3.0, 0.0, 6.0) / 6.0)
_register("hardswish", lambda v: v * clamped(v + 3.0, 0.0, 6.0) / 6.0)
_register("mish", lambda v: v * v.op("exp").op("log1p").op("tanh"))
_register("log_sigmoid", lambda v: v.op("minimum", 0.0) - (-v.op("abs")).op("exp").op("log1p"))


@rule("aten.hardtanh.default")
def hardtanh(low: Lowering, node: Node, x: TensorValue, min_val: float = -1, max_val: float = 1) -> TensorValue:
    return low.pointwise(node, lambda v: clamped(v, min_val, max_val), x)


def _elu(v: Value, alpha: float, scale: float, input_scale: float) -> Value:
    inner = v if input_scale == 1 else v * input_scale
    return v.builder.where(v <= 0, inner.op("expm1") * (alpha * scale), v if scale == 1 else v * scale)


@rule("aten.elu.default")
def elu(
    low: Lowering, node: Node, x: TensorValue, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> TensorValue:
    return low.pointwise(node, lambda v: _elu(v, alpha, scale, input_scale), x)


@rule("aten.celu.default")
def celu(low: Lowering, node: Node, x: TensorValue, alpha: float = 1.0) -> TensorValue:
    return low.pointwise(node, lambda v: _elu(v, alpha, 1.0, 1.0 / alpha), x)


@rule("aten.selu.default")
def selu(low: Lowering, node: Node, x: TensorValue) -> TensorValue:
    return low.pointwise(node, lambda v: _elu(v, _SELU[0], _SELU[1], 1.0), x)


@rule("aten.leaky_relu.default")
def leaky_relu(low: Lowering, node: Node, x: TensorValue, slope: float = 0.01) -> TensorValue:
    return low.pointwise(node, lambda v: v.builder.where(v > 0, v, v * slope), x)


@rule("aten.softplus.default")
def softplus(low: Lowering, node: Node, x: TensorValue, beta: float = 1, threshold: float = 20) -> TensorValue:
    return low.pointwise(node, lambda v: softplus_of(v, beta, threshold), x)


@rule("aten.log_sigmoid_forward.default")
def log_sigmoid_forward(low: Lowering, node: Node, x: TensorValue) -> list[TensorValue]:
    out, saved = low.result(node, 0), low.result(node, 1)
    low.plain(out.dtype)
    b = low.nest(node, out.shape)
    v = low.operand(b, x, opmath(x.dtype))
    small = (-v.op("abs")).op("exp")
    b.store(out, v.op("minimum", 0.0) - small.op("log1p"))
    if saved.shape == out.shape:
        b.store(saved, small)
    low.finish(b)
    return [out, saved]


@rule("aten.hardshrink.default")
def hardshrink(low: Lowering, node: Node, x: TensorValue, lambd: float = 0.5) -> TensorValue:
    return low.pointwise(node, lambda v: v.builder.where((v >= -lambd) & (v <= lambd), 0.0, v), x)


@rule("aten.softshrink.default")
def softshrink(low: Lowering, node: Node, x: TensorValue, lambd: float = 0.5) -> TensorValue:
    def body(v: Value) -> Value:
        where = v.builder.where
        return where(v > lambd, v - lambd, where(v < -lambd, v + lambd, v * 0.0))

    return low.pointwise(node, body, x)


@rule("aten.threshold.default")
def threshold(low: Lowering, node: Node, x: TensorValue, limit: float, value: float) -> TensorValue:
    return low.pointwise(node, lambda v: v.builder.where(v <= limit, value, v), x)


@rule("aten._prelu_kernel.default")
def prelu(low: Lowering, node: Node, x: TensorValue, weight: TensorValue) -> TensorValue:
    return low.pointwise(node, lambda v, w: v.builder.where(v > 0, v, v * w), x, weight)


@rule("aten.rrelu_with_noise_functional.default")
def rrelu(
    low: Lowering,
    node: Node,
    x: TensorValue,
    noise: TensorValue,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Operand | None = None,
) -> list[TensorValue]:
    """In evaluation a leaky ReLU of the mean slope, which leaves the noise as it was."""
    if training:
        raise Decline("random slopes in eager's order")
    slope = (lower + upper) / 2
    out = low.into(node, low.result(node, 0), lambda v: v.builder.where(v > 0, v, v * slope), x)
    return [out, noise]


def half_of(x: TensorValue, dim: int, position: tuple[Expr, ...], second: bool) -> list[Expr]:
    """Where, for an element of the gated result, its partner in the first or second half of ``dim`` lies."""
    where = list(position)
    if second:
        where[dim] = where[dim] + x.shape[dim] // 2
    return where


@rule("aten.glu.default")
def glu(low: Lowering, node: Node, x: TensorValue, dim: int = -1) -> TensorValue:
    out = low.result(node)
    low.plain(out.dtype)
    b = low.nest(node, out.shape)
    kin = opmath(x.dtype)
    first, second = (b.load(x, half_of(x, dim % x.rank, b.axes, s)).to(kin) for s in (False, True))
    b.store(out, first * second.op("sigmoid"))
    low.finish(b)
    return out
