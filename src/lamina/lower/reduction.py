"""Reductions: sums, means, products, extremes with and without their places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch.fx import Node

from lamina.base.dtypes import DTYPES
from lamina.base.symbolic.torch_private import is_positive
from lamina.ir.index import Expr, as_expr, prod
from lamina.lower.builder import NestBuilder, Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue

__all__ = [
    "Dims",
    "count",
    "keep_position",
    "over",
    "reduced",
    "reduced_dims",
    "store_reduced",
]

Dims: TypeAlias = int | Sequence[int] | None


def reduced_dims(x: TensorValue, dims: Dims, empty_is_all: bool = True) -> list[int]:
    """The positions of the dimensions that ``dims`` names; ``None`` names all of them."""
    if dims is None:
        return list(range(x.rank))
    listed = [dims] if isinstance(dims, int) else list(dims)
    if not listed and empty_is_all:
        return list(range(x.rank))
    return sorted(d % x.rank for d in listed) if x.rank else []


def count(b: NestBuilder, shape: Sequence[Expr], dtype: str) -> Value:
    """How many elements there are in a box, as a number."""
    total = prod(shape)
    return b.constant(int(total), dtype) if total.is_int else b.index(total).to(dtype)


def keep_position(b: NestBuilder, out: TensorValue, dims: Sequence[int]) -> list[Expr]:
    """Where a result of reducing ``dims`` of the nest's axes is stored, with or without the reduced dimensions."""
    if out.rank == len(b.axes):
        return [as_expr(0) if k in dims else axis for k, axis in enumerate(b.axes)]
    return [axis for k, axis in enumerate(b.axes) if k not in dims]


def store_reduced(b: NestBuilder, out: TensorValue, value: Value, dims: Sequence[int]) -> None:
    """Store a value from which ``dims`` have been reduced."""
    b.store(out, value, keep_position(b, out, dims))


Reducer: TypeAlias = Callable[[NestBuilder, Value, list[int]], Value]


def reduced(
    low: Lowering, node: Node, out: TensorValue, x: TensorValue, dims: list[int], kin: str, body: Reducer
) -> TensorValue:
    """One nest over ``x``, read as ``kin``, whose ``body`` reduces ``dims``; the result goes to ``out``."""
    low.plain(out.dtype, x.dtype, kin)
    b = low.nest(node, x.shape)
    store_reduced(b, out, body(b, b.load(x).to(kin), dims), dims)
    low.finish(b)
    return out


def over(b: NestBuilder, op: str, value: Value, dims: list[int]) -> Value:
    """Reduce ``dims``; a value without dimensions is its own reduction, and a sum is not -0.0."""
    if dims:
        return b.reduce(op, value, dims)
    return value + 0.0 if op == "sum" and DTYPES[value.dtype].is_float else value


@rule("aten.sum.default", "aten.sum.dim_IntList")
def sum(
    low: Lowering, node: Node, x: TensorValue, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> TensorValue:
    out = low.result(node)
    return reduced(low, node, out, x, reduced_dims(x, dim), opmath(out.dtype), lambda b, v, d: over(b, "sum", v, d))


@rule("prims.sum.default", "prims.prod.default", "prims.amax.default", "prims.amin.default")
def prims_reduction(low: Lowering, node: Node, x: TensorValue, dims: Dims, **options: Any) -> TensorValue:
    out = low.result(node)
    op = {"sum": "sum", "prod": "prod", "amax": "max", "amin": "min"}[str(node.target).split(".")[1]]
    chosen = reduced_dims(x, dims, False)
    if op in ("max", "min"):
        chosen = _nonempty(node, chosen)
    return reduced(low, node, out, x, chosen, opmath(out.dtype), lambda b, v, d: over(b, op, v, d))


@rule("aten.nansum.default")
def nansum(
    low: Lowering, node: Node, x: TensorValue, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> TensorValue:
    out = low.result(node)

    def body(b: NestBuilder, v: Value, dims: list[int]) -> Value:
        known = b.where(v.op("isnan"), 0, v) if DTYPES[v.dtype].is_float else v
        return over(b, "sum", known, dims)

    return reduced(low, node, out, x, reduced_dims(x, dim), opmath(out.dtype), body)


@rule("aten.mean.default", "aten.mean.dim")
def mean(
    low: Lowering, node: Node, x: TensorValue, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> TensorValue:
    out = low.result(node)
    dims = reduced_dims(x, dim)

    def body(b: NestBuilder, v: Value, dims: list[int]) -> Value:
        return over(b, "sum", v, dims) / count(b, [x.shape[d] for d in dims], v.dtype)

    return reduced(low, node, out, x, dims, opmath(out.dtype), body)


@rule("aten.prod.default", "aten.prod.dim_int")
def prod_(
    low: Lowering, node: Node, x: TensorValue, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> TensorValue:
    out = low.result(node)
    return reduced(low, node, out, x, reduced_dims(x, dim), opmath(out.dtype), lambda b, v, d: over(b, "prod", v, d))


def _nonempty(node: Node, dims: list[int]) -> list[int]:
    """``dims``, over which an extreme is to be found. Without elements there is none: ATen's kernel then says so."""
    shape = node.args[0].meta["val"].shape  # type: ignore[union-attr]
    if not all(is_positive(shape[d]) for d in dims):
        raise Decline("an extreme over what may have no elements")
    return dims


def _extreme(op: str) -> Reducer:
    def body(b: NestBuilder, v: Value, dims: list[int]) -> Value:
        if v.dtype == "bool":
            return over(b, {"max": "any", "min": "all"}[op], v, dims)
        return over(b, op, v, dims)

    return body


@rule("aten.amax.default", "aten.max.default")
def amax(low: Lowering, node: Node, x: TensorValue, dim: Dims = None, keepdim: bool = False) -> TensorValue:
    dims = _nonempty(node, reduced_dims(x, dim))
    return reduced(low, node, low.result(node), x, dims, opmath(x.dtype), _extreme("max"))


@rule("aten.amin.default", "aten.min.default")
def amin(low: Lowering, node: Node, x: TensorValue, dim: Dims = None, keepdim: bool = False) -> TensorValue:
    dims = _nonempty(node, reduced_dims(x, dim))
    return reduced(low, node, low.result(node), x, dims, opmath(x.dtype), _extreme("min"))


@rule("aten.aminmax.default")
def aminmax(
    low: Lowering, node: Node, x: TensorValue, dim: int | None = None, keepdim: bool = False
) -> list[TensorValue]:
    outs = [low.result(node, 0), low.result(node, 1)]
    low.plain(x.dtype)
    dims = _nonempty(node, reduced_dims(x, dim))
    b = low.nest(node, x.shape)
    v = b.load(x).to(opmath(x.dtype))
    for out, op in zip(outs, ("min", "max"), strict=True):
        store_reduced(b, out, _extreme(op)(b, v, dims), dims)
    low.finish(b)
    return outs


def _ordered(v: Value) -> Value:
    """The value in a type that has an order."""
    return v.to("uint8") if v.dtype == "bool" else v


def _place(b: NestBuilder, op: str, v: Value, dims: list[int]) -> Value:
    return b.reduce(f"arg{op}", _ordered(v), dims) if dims else b.constant(0, "int64")


@rule("aten.argmax.default", "aten.argmin.default")
def argmax(low: Lowering, node: Node, x: TensorValue, dim: int | None = None, keepdim: bool = False) -> TensorValue:
    if x.dtype == "bool":
        raise Decline("eager has no place of the largest boolean")
    op = str(node.target).split(".")[1].removeprefix("arg")
    dims = _nonempty(node, reduced_dims(x, dim))
    return reduced(low, node, low.result(node), x, dims, opmath(x.dtype), lambda b, v, d: _place(b, op, v, d))


@rule("aten.max.dim", "aten.min.dim")
def max_dim(low: Lowering, node: Node, x: TensorValue, dim: int, keepdim: bool = False) -> list[TensorValue]:
    op = str(node.target).split(".")[1]
    values, places = low.result(node, 0), low.result(node, 1)
    low.plain(x.dtype)
    dims = _nonempty(node, reduced_dims(x, dim))
    b = low.nest(node, x.shape)
    v = b.load(x).to(opmath(x.dtype))
    store_reduced(b, values, _extreme(op)(b, v, dims), dims)
    store_reduced(b, places, _place(b, op, v, dims), dims)
    low.finish(b)
    return [values, places]


@rule("aten.any.default", "aten.any.dim", "aten.any.dims", "aten.all.default", "aten.all.dim", "aten.all.dims")
def any(low: Lowering, node: Node, x: TensorValue, dim: Dims = None, keepdim: bool = False) -> TensorValue:
    op = str(node.target).split(".")[1]
    dims = reduced_dims(x, dim, empty_is_all=False)
    return reduced(low, node, low.result(node), x, dims, "bool", lambda b, v, d: over(b, op, v, d))


@rule("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def count_nonzero(low: Lowering, node: Node, x: TensorValue, dim: Dims = None) -> TensorValue:
    body: Reducer = lambda b, v, d: over(b, "sum", v.to("int64"), d)  # noqa: E731
    return reduced(low, node, low.result(node), x, reduced_dims(x, dim), "bool", body)


@rule("aten.trace.default")
def trace(low: Lowering, node: Node, x: TensorValue) -> TensorValue:
    rows, columns = x.shape
    if not (rows.is_int and columns.is_int):
        raise Decline("the trace of a matrix of unknown shape")
    out = low.result(node)
    low.plain(out.dtype)
    b = low.nest(node, [as_expr(min(int(rows), int(columns)))])
    b.store(out, b.reduce("sum", b.load(x, [b.axes[0], b.axes[0]]).to(opmath(out.dtype)), [0]), [])
    low.finish(b)
    return out
