"""Concatenation: one result, and a nest for each piece that writes its slice of it."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from lamina.ir.index import as_expr
from lamina.lower.context import Lowering
from lamina.lower.rules import rule
from lamina.lower.values import TensorValue
from lamina.lower.views import reshaped, sliced

__all__: list[str] = []


@rule("aten.cat.default", "prims.cat.default")
def cat(low: Lowering, node: Node, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    out = low.result(node)
    pieces = [x for x in tensors if x.rank == out.rank and x.numel() != 0]
    low.plain(out.dtype, *(x.dtype for x in pieces))
    dim %= max(out.rank, 1)
    start = as_expr(0)
    for x in pieces:
        _write(low, node, sliced(out, dim, start, x.shape[dim]), x)
        start = start + x.shape[dim]
    return out


@rule("aten.stack.default")
def stack(low: Lowering, node: Node, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    out = low.result(node)
    low.plain(out.dtype, *(x.dtype for x in tensors))
    dim %= out.rank
    for k, x in enumerate(tensors):
        shape = [*x.shape[:dim], as_expr(1), *x.shape[dim:]]
        _write(low, node, sliced(out, dim, as_expr(k), as_expr(1)), reshaped(x, shape))
    return out


def _write(low: Lowering, node: Node, target: TensorValue, x: TensorValue) -> None:
    b = low.nest(node, x.shape)
    b.store(target, b.load(x), b.axes)
    low.finish(b)
