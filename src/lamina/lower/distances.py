"""Distances of all pairs of points by sums of absolute differences, and their gradients, as nests on a CPU.

ATen computes a pair at a time with a few lanes. A nest has vectors along points (``schedule.copied_operands``), and
what comes before and after joins it. Other norms are ATen's: the Euclidean one is a product (``decomp.distances``).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from lamina.ir.index import Expr
from lamina.lower.builder import NestBuilder, Value
from lamina.lower.context import Lowering
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue, broadcast_index

__all__: list[str] = []

_REASON = "distances of all pairs use a matrix product"
_FLOATS = ("float32", "float64")


@rule("aten._cdist_forward.default")
def cdist_forward(
    low: Lowering, node: Node, first: TensorValue, second: TensorValue, order: float, mode: int | None = None
) -> TensorValue:
    _check(low, first, order)
    out = low.result(node)
    b = low.nest(node, [*out.shape, first.shape[-1]])
    *batch, i, j, k = b.axes
    apart = _difference(b, first, second, batch, i, j, k)
    b.store(out, b.reduce("sum", apart.op("abs"), [len(b.axes) - 1]), [*batch, i, j])
    low.finish(b)
    return out


@rule("aten._cdist_backward.default")
def cdist_backward(
    low: Lowering,
    node: Node,
    gradient: TensorValue,
    first: TensorValue,
    second: TensorValue,
    order: float,
    distances: TensorValue,
) -> TensorValue:
    """Of the first points: each pair's gradient, with the sign of what their numbers differ by."""
    _check(low, first, order)
    out = low.result(node)
    *outer, points, numbers = out.shape
    b = low.nest(node, [*outer, points, second.shape[-2], numbers])
    *batch, i, j, k = b.axes
    apart = _difference(b, first, second, batch, i, j, k)
    sign = b.where(apart.equals(apart), apart.op("sign"), apart)
    given = b.load(gradient, broadcast_index(gradient.shape, [*batch, i, j]))
    b.store(out, b.reduce("sum", given * sign, [len(b.axes) - 2]), [*batch, i, k])
    low.finish(b)
    return out


def _check(low: Lowering, points: TensorValue, order: float) -> None:
    if not low.buffers[points.buffer].on_cpu or low.numerics != "fast":
        raise Decline(_REASON)
    if order != 1 or points.dtype not in _FLOATS:
        raise Decline(_REASON)


def _difference(
    b: NestBuilder, first: TensorValue, second: TensorValue, batch: Sequence[Expr], i: Expr, j: Expr, k: Expr
) -> Value:
    ours = b.load(first, broadcast_index(first.shape, [*batch, i, k]))
    return ours - b.load(second, broadcast_index(second.shape, [*batch, j, k]))
