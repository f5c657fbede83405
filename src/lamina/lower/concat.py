"""Joining tensors: one result, and one nest for each piece, so that a producer can write its piece itself."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from lamina.ir.index import Expr, as_expr
from lamina.lower.context import Lowering
from lamina.lower.positions import dimension
from lamina.lower.reshaping import reshaped
from lamina.lower.rules import rule
from lamina.lower.values import TensorValue
from lamina.lower.views import sliced

__all__: list[str] = []


def _write_piece(low: Lowering, node: Node, out: TensorValue, piece: TensorValue, dim: int, start: Expr) -> None:
    b = low.nest(node, piece.shape)
    b.store(sliced(out, dim, start, piece.shape[dim]), b.load(piece), b.axes)
    low.finish(b)


def _join(low: Lowering, node: Node, pieces: Sequence[TensorValue], dim: int) -> TensorValue:
    out = low.result(node)
    low.plain(out.dtype, *(x.dtype for x in pieces))
    start = as_expr(0)
    for piece in pieces:
        if not any(n == 0 for n in piece.shape):
            _write_piece(low, node, out, piece, dim, start)
        start = start + piece.shape[dim]
    return out


@rule("aten.cat.default", "prims.cat.default")
def cat(low: Lowering, node: Node, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    rank = len(node.meta["val"].shape)
    pieces = [t for t in tensors if t.rank == rank]  # a vector without elements joins tensors of any shape
    return _join(low, node, pieces, dimension(dim, rank))


@rule("aten.stack.default")
def stack(low: Lowering, node: Node, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    dim = dim % (tensors[0].rank + 1)
    return _join(low, node, [reshaped(low, t, [*t.shape[:dim], as_expr(1), *t.shape[dim:]]) for t in tensors], dim)
