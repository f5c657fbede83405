"""Layer and root-mean-square normalisation, forward and backward: one nest each.

The backward nests hold row sums (for the input's gradient) and column sums (for the weights') at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from lamina.ir.index import Expr
from lamina.lower.builder import NestBuilder, Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.reduction import count
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue
from lamina.lower.vector_norms import vector_norm

__all__ = ["absent_bias", "affine", "input_gradient", "normalised", "optional_results"]


def optional_results(low: Lowering, node: Node, mask: Sequence[bool]) -> list[TensorValue | None]:
    """A new buffer for each result that the caller asked for."""
    val = node.meta["val"]
    wanted = zip(mask, val, strict=True)
    return [low.result(node, k) if asked and v is not None else None for k, (asked, v) in enumerate(wanted)]


def normalised(b: NestBuilder, v: Value, dims: list[int], eps: float, shape: Sequence[Expr]) -> tuple[Value, Value]:
    """Mean and reciprocal standard deviation of ``v`` over ``dims``."""
    average, deviation = b.reduce_many("welford", v, dims)
    variance = deviation / count(b, [shape[d] for d in dims], v.dtype)
    return average, (variance + eps).op("rsqrt")


def affine(v: Value, weight: Value | None, bias: Value | float | None) -> Value:
    """``v`` times ``weight`` plus ``bias``, without those that are absent."""
    v = v if weight is None else v * weight
    return v if bias is None else v + bias


def absent_bias(low: Lowering, out: TensorValue) -> float | None:
    """What eager adds where there is no bias: on the CPU 0.0, after which no zero is -0.0."""
    return None if low.on_gpu(out) else 0.0


@rule("aten.native_layer_norm.default")
def layer_norm(
    low: Lowering,
    node: Node,
    x: TensorValue,
    shape: Sequence[Any],
    weight: TensorValue | None,
    bias: TensorValue | None,
    eps: float,
) -> list[TensorValue]:
    out, mean, rstd = (low.result(node, k) for k in range(3))
    low.plain(x.dtype, out.dtype)
    kin = opmath(x.dtype)
    dims = list(range(x.rank - len(shape), x.rank))
    b = low.nest(node, x.shape)
    v = b.load(x).to(kin)
    average, scale = normalised(b, v, dims, eps, x.shape)
    factor = None if weight is None else b.load(weight).to(kin)
    term = absent_bias(low, out) if bias is None else b.load(bias).to(kin)
    b.store(out, affine((v - average) * scale, factor, term))
    for target, value in ((mean, average), (rstd, scale)):
        b.store(target, value, _kept(b, target, dims))
    low.finish(b)
    return [out, mean, rstd]


def _kept(b: NestBuilder, target: TensorValue, dims: Sequence[int]) -> list[Expr]:
    """The position, in a statistic that keeps or drops the reduced dimensions, of the nest's own position."""
    outer = len(b.axes) - len(dims)
    return [b.axes[k] if k < outer else b.axes[k] * 0 for k in range(target.rank)]


@rule("aten.native_layer_norm_backward.default")
def layer_norm_backward(
    low: Lowering,
    node: Node,
    grad: TensorValue,
    x: TensorValue,
    shape: Sequence[Any],
    mean: TensorValue,
    rstd: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    mask: Sequence[bool],
) -> list[TensorValue | None]:
    outs = optional_results(low, node, mask)
    low.plain(x.dtype)
    kin = opmath(x.dtype)
    outer = x.rank - len(shape)
    inner, rows = list(range(outer, x.rank)), list(range(outer))
    b = low.nest(node, x.shape)
    g = b.load(grad).to(kin)
    average, scale = (b.load(t, _kept(b, t, inner)).to(kin) for t in (mean, rstd))
    unit = (b.load(x).to(kin) - average) * scale
    if outs[0] is not None:
        weighted = g if weight is None else g * b.load(weight).to(kin)
        b.store(outs[0], input_gradient(b, weighted, unit, scale, inner, x.shape))
    for out, value in ((outs[1], g * unit if outs[1] is not None else g), (outs[2], g)):
        if out is not None:
            b.store(out, b.reduce("sum", value, rows) if rows else value, b.axes[outer:])
    low.finish(b)
    return outs


def input_gradient(
    b: NestBuilder, weighted: Value, unit: Value, scale: Value, dims: list[int], shape: Sequence[Expr]
) -> Value:
    """The gradient through a normalisation over ``dims``: what is left after removing its mean and its unit part."""
    number = count(b, [shape[d] for d in dims], unit.dtype)
    offset = b.reduce("sum", weighted, dims) / number
    slope = b.reduce("sum", weighted * unit, dims) / number
    return (weighted - offset - unit * slope) * scale


@rule("aten._fused_rms_norm.default")
def rms_norm(
    low: Lowering, node: Node, x: TensorValue, shape: Sequence[Any], weight: TensorValue | None, eps: float | None
) -> list[TensorValue]:
    if eps is None:
        raise Decline("the default epsilon depends on the device's arithmetic")
    out, rstd = low.result(node, 0), low.result(node, 1)
    low.plain(x.dtype, out.dtype)
    kin = opmath(x.dtype)
    dims = list(range(x.rank - len(shape), x.rank))
    b = low.nest(node, x.shape)
    v = b.load(x).to(kin)
    square = b.reduce("sum", v * v, dims) / count(b, [x.shape[d] for d in dims], kin)
    scale = (square + eps).op("rsqrt")
    b.store(out, affine(v * scale, b.load(weight).to(kin) if weight is not None else None, None))
    b.store(rstd, scale, _kept(b, rstd, dims))
    low.finish(b)
    return [out, rstd]


@rule("aten._fused_rms_norm_backward.default")
def rms_norm_backward(
    low: Lowering,
    node: Node,
    grad: TensorValue,
    x: TensorValue,
    shape: Sequence[Any],
    rstd: TensorValue,
    weight: TensorValue | None,
    mask: Sequence[bool],
) -> list[TensorValue | None]:
    outs = optional_results(low, node, mask)
    low.plain(x.dtype)
    kin = opmath(x.dtype)
    outer = x.rank - len(shape)
    inner, rows = list(range(outer, x.rank)), list(range(outer))
    b = low.nest(node, x.shape)
    g, scale = b.load(grad).to(kin), b.load(rstd, _kept(b, rstd, inner)).to(kin)
    unit = b.load(x).to(kin) * scale
    if outs[0] is not None:
        weighted = g if weight is None else g * b.load(weight).to(kin)
        slope = b.reduce("sum", weighted * unit, inner) / count(b, x.shape[outer:], kin)
        b.store(outs[0], (weighted - unit * slope) * scale)
    if outs[1] is not None:
        product = g * unit
        b.store(outs[1], b.reduce("sum", product, rows) if rows else product, b.axes[outer:])
    low.finish(b)
    return outs


@rule("aten.renorm.default")
def renorm(low: Lowering, node: Node, x: TensorValue, p: Any, dim: int, maxnorm: Any) -> TensorValue:
    """Slices along ``dim`` whose norm is too large, scaled to have the largest that is allowed."""
    if not isinstance(p, int | float) or not isinstance(maxnorm, int | float):
        raise Decline("a norm that is not a number")
    out = low.result(node)
    low.plain(x.dtype)
    kin = opmath(x.dtype)
    b = low.nest(node, x.shape)
    v = b.load(x).to(kin)
    norm = vector_norm(b, v, [d for d in range(x.rank) if d != dim % x.rank], float(p))
    factor = b.where(norm > maxnorm, maxnorm / (norm + 1e-7), 1.0)
    b.store(out, v * factor.to(x.dtype).to(kin))
    low.finish(b)
    return out
