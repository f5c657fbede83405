"""Softmax, its logarithm, log-sum-exp, and their backward passes: one nest each."""

from __future__ import annotations

import math
from typing import Any

from torch.fx import Node

from lamina.lower.builder import NestBuilder, Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.reduction import Dims, over, reduced_dims, store_reduced
from lamina.lower.rules import rule
from lamina.lower.values import TensorValue

__all__: list[str] = []


@rule("aten._softmax.default")
def softmax(low: Lowering, node: Node, x: TensorValue, dim: int, half_to_float: bool = False) -> TensorValue:
    out = low.result(node)
    low.plain(x.dtype, out.dtype)
    b = low.nest(node, out.shape)
    v = b.load(x).to(opmath(x.dtype))
    dims = reduced_dims(x, dim)
    e = (v - over(b, "max", v, dims)).op("exp")
    b.store(out, e / over(b, "sum", e, dims))
    low.finish(b)
    return out


@rule("aten._safe_softmax.default")
def safe_softmax(low: Lowering, node: Node, x: TensorValue, dim: int, dtype: Any = None) -> TensorValue:
    """Softmax that gives zeros for a row of minus infinities."""
    out = low.result(node)
    low.plain(x.dtype, out.dtype)
    b = low.nest(node, out.shape)
    v = b.load(x).to(opmath(out.dtype))
    dims = reduced_dims(x, dim)
    high = over(b, "max", v, dims)
    e = (v - high).op("exp")
    b.store(out, b.where(high.equals(-math.inf), 0.0, e / over(b, "sum", e, dims)))
    low.finish(b)
    return out


@rule("aten._log_softmax.default")
def log_softmax(low: Lowering, node: Node, x: TensorValue, dim: int, half_to_float: bool = False) -> TensorValue:
    out = low.result(node)
    low.plain(x.dtype, out.dtype)
    b = low.nest(node, out.shape)
    v = b.load(x).to(opmath(x.dtype))
    dims = reduced_dims(x, dim)
    shifted = v - over(b, "max", v, dims)
    b.store(out, shifted - over(b, "sum", shifted.op("exp"), dims).op("log"))
    low.finish(b)
    return out


@rule("aten._softmax_backward_data.default")
def softmax_backward(low: Lowering, node: Node, grad: TensorValue, y: TensorValue, dim: int, dtype: Any) -> TensorValue:
    """On each device the signs of zeros are eager's, whose product with what underflowed comes last on the CPU."""
    out, b, g, v, dims = _backward(low, node, grad, y, dim)
    weighted = g * v
    total = over(b, "sum", weighted, dims)
    b.store(out, weighted - v * total if low.on_gpu(out) else (g - total) * v)
    low.finish(b)
    return out


@rule("aten._log_softmax_backward_data.default")
def log_softmax_backward(
    low: Lowering, node: Node, grad: TensorValue, y: TensorValue, dim: int, dtype: Any
) -> TensorValue:
    out, b, g, v, dims = _backward(low, node, grad, y, dim)
    b.store(out, g - v.op("exp") * over(b, "sum", g, dims))
    low.finish(b)
    return out


def _backward(
    low: Lowering, node: Node, grad: TensorValue, y: TensorValue, dim: int
) -> tuple[TensorValue, NestBuilder, Value, Value, list[int]]:
    """The result, its nest, the loaded gradient and result of the forward, and the reduced dimensions."""
    out = low.result(node)
    low.plain(grad.dtype, out.dtype)
    b = low.nest(node, out.shape)
    kin = opmath(grad.dtype)
    return out, b, b.load(grad).to(kin), b.load(y).to(kin), reduced_dims(y, dim)


@rule("aten.logsumexp.default")
def logsumexp(low: Lowering, node: Node, x: TensorValue, dim: Dims, keepdim: bool = False) -> TensorValue:
    out = low.result(node)
    low.plain(x.dtype, out.dtype)
    dims = reduced_dims(x, dim)
    b = low.nest(node, x.shape)
    store_reduced(b, out, _log_sum_exp(b, b.load(x).to(opmath(out.dtype)), dims), dims)
    low.finish(b)
    return out


def _log_sum_exp(b: NestBuilder, v: Value, dims: list[int]) -> Value:
    high = over(b, "max", v, dims)
    shift = b.where(high.op("isinf"), 0.0, high)
    return over(b, "sum", (v - shift).op("exp"), dims).op("log") + shift
