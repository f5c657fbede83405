"""Norms of vectors, and distances of two."""

from __future__ import annotations

import math
from typing import Any

from torch.fx import Node

from lamina.ir.index import Expr
from lamina.lower.builder import NestBuilder, Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.reduction import Dims, over, reduced, reduced_dims
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue

__all__ = ["norm_into", "vector_norm"]


def vector_norm(b: NestBuilder, v: Value, dims: list[int], order: float) -> Value:
    """The norm of that order over ``dims``."""
    size = v.op("abs")
    if order == math.inf:
        return over(b, "max", size, dims)
    if order == -math.inf:
        return over(b, "min", size, dims)
    if order == 0:
        return over(b, "sum", v.op("ne", 0).to(v.dtype), dims)
    if order == 1:
        return over(b, "sum", size, dims)
    if not dims:
        return size
    if order == 2:
        return over(b, "sum", v * v, dims).op("sqrt")
    return over(b, "sum", size.op("pow", order), dims).op("pow", 1.0 / order)


def norm_into(low: Lowering, node: Node, out: TensorValue, x: TensorValue, order: Any, dims: list[int]) -> TensorValue:
    """The vector norm of ``x`` over ``dims`` into ``out``."""
    if not isinstance(order, int | float):
        raise Decline("order of the norm is not a number")
    kin = opmath(out.dtype)
    return reduced(low, node, out, x, dims, kin, lambda b, v, d: vector_norm(b, v, d, float(order)))


@rule("aten.linalg_vector_norm.default")
def linalg_vector_norm(
    low: Lowering, node: Node, x: TensorValue, ord: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> TensorValue:
    return norm_into(low, node, low.result(node), x, ord, reduced_dims(x, dim))


@rule("aten.norm.Scalar", "aten.norm.ScalarOpt_dim", "aten.norm.ScalarOpt_dim_dtype", "aten.norm.ScalarOpt_dtype")
def norm(
    low: Lowering, node: Node, x: TensorValue, p: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> TensorValue:
    return norm_into(low, node, low.result(node), x, 2 if p is None else p, reduced_dims(x, dim))


@rule("aten.dist.default")
def dist(low: Lowering, node: Node, x: TensorValue, y: TensorValue, p: Any = 2) -> TensorValue:
    if not isinstance(p, int | float):
        raise Decline("order of the norm is not a number")
    out = low.result(node)
    low.plain(out.dtype)
    rank = max(x.rank, y.rank)
    joined = [_wider(x, y, k - rank) for k in range(rank)]
    b = low.nest(node, joined)
    kin = opmath(out.dtype)
    dims = list(range(len(joined)))
    b.store(out, vector_norm(b, b.load(x).to(kin) - b.load(y).to(kin), dims, float(p)), [])
    low.finish(b)
    return out


def _wider(x: TensorValue, y: TensorValue, position: int) -> Expr:
    sizes = [v.shape[position] for v in (x, y) if -position <= v.rank]
    return next((n for n in sizes if n != 1), sizes[0])
