"""Elementwise losses with a reduction, and their gradients."""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import Node

from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.formulas import formula_of
from lamina.lower.reduction import count
from lamina.lower.rules import rule
from lamina.lower.values import TensorValue

__all__ = ["joined_shape", "reduced_loss"]

MEAN = 1
"""ATen's number for ``reduction="mean"``."""


def joined_shape(tensors: list[TensorValue]) -> list[Expr]:
    """The shape that tensors broadcast to."""
    rank = max(t.rank for t in tensors)
    joined: list[Expr] = []
    for k in range(-rank, 0):
        sizes = [t.shape[k] for t in tensors if t.rank >= -k]
        joined.append(next((n for n in sizes if n != 1), as_expr(1)))
    return joined


def reduced_loss(
    low: Lowering, node: Node, body: Callable[..., Value], reduction: int, *inputs: TensorValue
) -> TensorValue:
    """``body`` of each element of the broadcast inputs: all of them (0), their mean (1) or their sum (2)."""
    out = low.result(node)
    if reduction == 0:
        return low.into(node, out, body, *inputs)
    low.plain(out.dtype, *(t.dtype for t in inputs))
    kin = opmath(out.dtype)
    shape = joined_shape(list(inputs))
    b = low.nest(node, shape)
    value = body(*(low.operand(b, t, kin) for t in inputs))
    total = b.reduce("sum", value, range(len(shape))) if shape else value
    b.store(out, total / count(b, shape, kin) if reduction == MEAN else total, [])
    low.finish(b)
    return out


def loss_gradient(
    low: Lowering,
    node: Node,
    body: Callable[..., Value],
    reduction: int,
    grad: TensorValue,
    *inputs: TensorValue,
    factor: float = 1.0,
) -> TensorValue:
    """``body`` of each element of the inputs, times the incoming gradient (over the number of elements for a mean).

    The gradient is what ``factor`` multiplies: times twice a difference, the largest numbers would overflow.
    """
    out = low.result(node)
    low.plain(out.dtype, *(t.dtype for t in inputs))
    kin = opmath(out.dtype)
    b = low.nest(node, out.shape)
    g = low.operand(b, grad, kin)
    if reduction == MEAN:
        g = g / count(b, out.shape, kin)
    if factor != 1.0:
        g = g * factor
    b.store(out, body(*(low.operand(b, t, kin) for t in inputs)) * g)
    low.finish(b)
    return out


def _sign(v: Value) -> Value:
    return formula_of("aten.sign.default")(v)


def _square_of_difference(x: Value, t: Value) -> Value:
    d = x - t
    return d * d


@rule("aten.mse_loss.default")
def mse_loss(low: Lowering, node: Node, x: TensorValue, target: TensorValue, reduction: int = MEAN) -> TensorValue:
    return reduced_loss(low, node, _square_of_difference, reduction, x, target)


@rule("aten.mse_loss_backward.default")
def mse_loss_backward(
    low: Lowering, node: Node, grad: TensorValue, x: TensorValue, target: TensorValue, reduction: int
) -> TensorValue:
    return loss_gradient(low, node, lambda x, t: x - t, reduction, grad, x, target, factor=2.0)


@rule("aten.smooth_l1_loss.default")
def smooth_l1_loss(
    low: Lowering, node: Node, x: TensorValue, target: TensorValue, reduction: int = MEAN, beta: float = 1.0
) -> TensorValue:
    def body(x: Value, t: Value) -> Value:
        z = (x - t).op("abs")
        return z if beta == 0 else z.builder.where(z < beta, z * z * 0.5 / beta, z - 0.5 * beta)

    return reduced_loss(low, node, body, reduction, x, target)


@rule("aten.smooth_l1_loss_backward.default")
def smooth_l1_loss_backward(
    low: Lowering, node: Node, grad: TensorValue, x: TensorValue, target: TensorValue, reduction: int, beta: float
) -> TensorValue:
    def body(x: Value, t: Value) -> Value:
        d = x - t
        if beta == 0:
            return _sign(d)
        return d.builder.where(d.op("abs") >= beta, _sign(d), d / beta)  # which a NaN comes through

    return loss_gradient(low, node, body, reduction, grad, x, target)


@rule("aten.huber_loss.default")
def huber_loss(
    low: Lowering, node: Node, x: TensorValue, target: TensorValue, reduction: int = MEAN, delta: float = 1.0
) -> TensorValue:
    def body(x: Value, t: Value) -> Value:
        z = (x - t).op("abs")
        return z.builder.where(z <= delta, z * z * 0.5, (z - 0.5 * delta) * delta)

    return reduced_loss(low, node, body, reduction, x, target)


@rule("aten.huber_loss_backward.default")
def huber_loss_backward(
    low: Lowering, node: Node, grad: TensorValue, x: TensorValue, target: TensorValue, reduction: int, delta: float
) -> TensorValue:
    def body(x: Value, t: Value) -> Value:
        d = x - t
        return d.builder.where(d.op("abs") > delta, _sign(d) * delta, d)  # which a NaN comes through

    return loss_gradient(low, node, body, reduction, grad, x, target)


@rule("aten.soft_margin_loss.default")
def soft_margin_loss(
    low: Lowering, node: Node, x: TensorValue, target: TensorValue, reduction: int = MEAN
) -> TensorValue:
    return reduced_loss(low, node, lambda x, t: (-t * x).op("exp").op("log1p"), reduction, x, target)


@rule("aten.soft_margin_loss_backward.default")
def soft_margin_loss_backward(
    low: Lowering, node: Node, grad: TensorValue, x: TensorValue, target: TensorValue, reduction: int
) -> TensorValue:
    return loss_gradient(low, node, lambda x, t: -t * (-t * x).op("sigmoid"), reduction, grad, x, target)


def _probability(v: Value, what: str) -> None:
    message = f"all elements of {what} should be between 0 and 1"
    v.builder.check((v >= 0) & (v <= 1), message, "RuntimeError")


@rule("aten.binary_cross_entropy.default")
def binary_cross_entropy(
    low: Lowering,
    node: Node,
    x: TensorValue,
    target: TensorValue,
    weight: TensorValue | None = None,
    reduction: int = MEAN,
) -> TensorValue:
    def body(x: Value, t: Value, *weights: Value) -> Value:
        _probability(x, "input")
        _probability(t, "target")
        # Eager bounds the logarithms, so that no loss is infinite.
        loss = (t - 1) * (-x).op("log1p").op("maximum", -100) - t * x.op("log").op("maximum", -100)
        return loss * weights[0] if weights else loss

    inputs = (x, target) if weight is None else (x, target, weight)
    return reduced_loss(low, node, body, reduction, *inputs)


@rule("aten.binary_cross_entropy_backward.default")
def binary_cross_entropy_backward(
    low: Lowering,
    node: Node,
    grad: TensorValue,
    x: TensorValue,
    target: TensorValue,
    weight: TensorValue | None = None,
    reduction: int = MEAN,
) -> TensorValue:
    def body(x: Value, t: Value, *weights: Value) -> Value:
        slope = (x - t) / ((1.0 - x) * x).op("maximum", 1e-12)
        return slope * weights[0] if weights else slope

    inputs = (x, target) if weight is None else (x, target, weight)
    return loss_gradient(low, node, body, reduction, grad, *inputs)


@rule("aten.binary_cross_entropy_with_logits.default")
def binary_cross_entropy_with_logits(
    low: Lowering,
    node: Node,
    x: TensorValue,
    target: TensorValue,
    weight: TensorValue | None = None,
    positive: TensorValue | None = None,
    reduction: int = MEAN,
) -> TensorValue:
    def body(x: Value, t: Value, *rest: Value) -> Value:
        extra = list(rest)
        scale = extra.pop(0) if weight is not None else None
        soft = x.op("minimum", 0.0) - (-x.op("abs")).op("exp").op("log1p")
        if positive is not None:
            loss = (1.0 - t) * x - ((extra[0] - 1.0) * t + 1.0) * soft
        else:
            loss = (1.0 - t) * x - soft
        return loss if scale is None else loss * scale

    inputs = [v for v in (x, target, weight, positive) if v is not None]
    return reduced_loss(low, node, body, reduction, *inputs)


@rule("aten.kl_div.default")
def kl_div(
    low: Lowering, node: Node, x: TensorValue, target: TensorValue, reduction: int = MEAN, log_target: bool = False
) -> TensorValue:
    def body(x: Value, t: Value) -> Value:
        if log_target:
            return t.op("exp") * (t - x)
        entropy = t.builder.where(t.equals(0), 0.0, t * t.op("log"))
        return t.builder.where(t.op("isnan"), t, entropy) - t * x

    return reduced_loss(low, node, body, reduction, x, target)
