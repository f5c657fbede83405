"""Padding, and the gradients of views, which are zero outside of what the view showed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from torch.fx import Node

from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import NestBuilder, Value
from lamina.lower.context import Lowering
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue
from lamina.lower.views import _clamped

__all__: list[str] = []


def within(b: NestBuilder, position: Expr, extent: Expr) -> Value:
    """Whether ``0 <= position < extent``."""
    place = b.index(position)
    limit = b.index(extent) if extent.terms else b.constant(extent.const, "int64")
    return (place >= 0) & (place < limit)


@rule("aten.constant_pad_nd.default")
def constant_pad_nd(low: Lowering, node: Node, x: TensorValue, pad: Sequence[Any], value: Any = 0) -> TensorValue:
    out = low.result(node)
    low.plain(out.dtype)
    b = low.nest(node, out.shape)
    position = list(b.axes)
    tests: list[Value] = []
    for k in range(len(pad) // 2):
        before, after = as_expr(pad[2 * k]), as_expr(pad[2 * k + 1])
        if before == 0 and after == 0:
            continue
        dim = x.rank - 1 - k
        position[dim] = position[dim] - before
        tests.append(within(b, position[dim], x.shape[dim]))
    if not tests:
        b.store(out, b.load(x))
    else:
        if isinstance(value, Expr):
            raise Decline("a symbolic fill value")
        inside = reduce(lambda p, q: p & q, tests)
        b.store(out, b.load(x, position, inside, value))
    low.finish(b)
    return out


@rule("aten.slice_backward.default")
def slice_backward(
    low: Lowering, node: Node, grad: TensorValue, sizes: Any, dim: int, start: Any, end: Any, step: int
) -> TensorValue:
    out = low.result(node)
    low.plain(out.dtype)
    dim %= out.rank
    first = _clamped(start, as_expr(0), out.shape[dim])
    b = low.nest(node, out.shape)
    position = list(b.axes)
    offset = b.axes[dim] - first
    position[dim] = offset // step
    inside = within(b, offset, grad.shape[dim] * step)
    if step != 1:
        inside = inside & b.index(offset % step).equals(0)
    b.store(out, b.load(grad, position, inside, 0))
    low.finish(b)
    return out


@rule("aten.select_backward.default")
def select_backward(low: Lowering, node: Node, grad: TensorValue, sizes: Any, dim: int, index: Any) -> TensorValue:
    out = low.result(node)
    low.plain(out.dtype)
    dim %= out.rank
    place = as_expr(index)
    if not place.is_int:
        raise Decline("a select at a symbolic index")
    if place.const < 0:
        place = place + out.shape[dim]
    b = low.nest(node, out.shape)
    hit = b.index(b.axes[dim] - place).equals(0)
    position = [a for d, a in enumerate(b.axes) if d != dim]
    b.store(out, b.load(grad, position, hit, 0))
    low.finish(b)
    return out
