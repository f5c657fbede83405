"""Activation functions and gradients that are more than a formula of one element."""

from __future__ import annotations

from torch.fx import Node

from lamina.ir.index import Expr
from lamina.lower.builder import Value, opmath
from lamina.lower.context import Lowering, Operand
from lamina.lower.formulas import formula_of
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue

__all__ = ["pair_of"]


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


def pair_of(x: TensorValue, dim: int, position: tuple[Expr, ...], second: bool) -> list[Expr]:
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
    first, second = (b.load(x, pair_of(x, dim % x.rank, b.axes, s)).to(kin) for s in (False, True))
    b.store(out, first * second.op("sigmoid"))
    low.finish(b)
    return out


@rule("aten.log_sigmoid_backward.default")
def log_sigmoid_backward(
    low: Lowering, node: Node, grad: TensorValue, x: TensorValue, saved: TensorValue
) -> TensorValue:
    """The saved exponential is not read: computing it again costs less than loading it."""
    return low.pointwise(node, lambda g, v: g * (-v).op("sigmoid"), grad, x)


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
    slope, gradient = (lower + upper) / 2, formula_of("aten.leaky_relu_backward.default")
    return low.pointwise(node, lambda g, v: gradient(g, v, slope, is_result), grad, x)


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


def _tanh_of_softplus(v: Value) -> Value:
    """``tanh(log1p(exp(v)))`` of one exponential: ``n / (n + 2)`` with ``n = e (e + 2)``, which is 1 from 20 on."""
    e = v.op("minimum", 20.0).op("exp")
    n = e * (e + 2.0)
    return n / (n + 2.0)


@rule("aten.mish.default")
def mish(low: Lowering, node: Node, x: TensorValue) -> TensorValue:
    exact = formula_of("aten.mish.default")
    return low.pointwise(node, exact if low.numerics == "eager" else lambda v: v * _tanh_of_softplus(v), x)


@rule("aten.mish_backward.default")
def mish_backward(low: Lowering, node: Node, grad: TensorValue, x: TensorValue) -> TensorValue:
    def body(g: Value, v: Value) -> Value:
        t = _tanh_of_softplus(v)
        return g * (t + v * v.op("sigmoid") * (1.0 - t * t))

    return low.pointwise(node, formula_of("aten.mish_backward.default") if low.numerics == "eager" else body, grad, x)


@rule("aten.glu_backward.default")
def glu_backward(low: Lowering, node: Node, grad: TensorValue, x: TensorValue, dim: int) -> TensorValue:
    out = low.result(node)
    low.plain(out.dtype)
    b = low.nest(node, grad.shape)
    kin = opmath(x.dtype)
    places = [pair_of(x, dim % x.rank, b.axes, second) for second in (False, True)]
    first, second = (b.load(x, place).to(kin) for place in places)
    g, gate = b.load(grad).to(kin), second.op("sigmoid")
    b.store(out, g * gate, places[0])
    b.store(out, g * first * gate * (1.0 - gate), places[1])
    low.finish(b)
    return out
