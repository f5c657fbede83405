"""Views: no code, only another way to index the same buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from lamina.base.symbolic.torch_private import depends_on_data
from lamina.ir.index import Expr, as_expr
from lamina.lower.context import Lowering
from lamina.lower.positions import argument, dimension, given, select_place, shape_of, slice_start, slice_step
from lamina.lower.reshaping import reshaped
from lamina.lower.rules import RULES, Decline, rule
from lamina.lower.sizes import expr_of
from lamina.lower.values import TensorValue, fresh_dims

__all__ = ["permuted", "selected", "sliced"]


def permuted(x: TensorValue, order: Sequence[int]) -> TensorValue:
    """Dimension ``k`` of the result is dimension ``order[k]`` of ``x``."""
    shape = [x.shape[d] for d in order]
    dims = fresh_dims(shape)
    return x.view(shape, [as_expr(dims[order.index(d)]) for d in range(x.rank)])


def sliced(x: TensorValue, dim: int, start: Expr, length: Expr, step: int | Expr = 1) -> TensorValue:
    """``length`` elements of dimension ``dim``: ``start``, ``start + step``, ..."""
    shape = [*x.shape[:dim], length, *x.shape[dim + 1 :]]
    position = [as_expr(d) for d in fresh_dims(shape)]
    position[dim] = position[dim] * step + start
    return x.view(shape, position)


def selected(x: TensorValue, dim: int, place: Expr) -> TensorValue:
    """The elements at ``place`` of dimension ``dim``, which is dropped."""
    shape = [*x.shape[:dim], *x.shape[dim + 1 :]]
    dims = [as_expr(d) for d in fresh_dims(shape)]
    return x.view(shape, [*dims[:dim], place, *dims[dim:]])


@rule("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten._reshape_alias.default")
def view(low: Lowering, node: Node, x: TensorValue, *_: object) -> TensorValue:
    return reshaped(low, x, shape_of(node))


@rule("aten.alias.default", "aten.detach.default", "aten.lift.default", "aten.lift_fresh.default")
def alias(low: Lowering, node: Node, x: TensorValue) -> TensorValue:
    return x


@rule("aten._conj.default", "aten._neg_view.default")
def lazily(low: Lowering, node: Node, x: TensorValue | complex) -> TensorValue:
    """Eager only marks the memory; here a value is what its memory holds, so it is computed."""
    out = low.result(node)
    if isinstance(x, complex):  # in the gradient of a product with a number
        kind = {"dtype": torch.complex128}
        low.library(node, "aten.scalar_tensor.default", (x.conjugate(),), kind, (out,), "a complex number as a tensor")
        return out
    physical = "aten._conj_physical.default" if node.target is torch.ops.aten._conj.default else "aten.neg.default"
    low.library(node, physical, (x,), {}, (out,), "complex numbers are left to the library")
    return out


@rule("aten.permute.default", "prims.transpose.default")
def permute(low: Lowering, node: Node, x: TensorValue, order: Sequence[int]) -> TensorValue:
    return permuted(x, [d % x.rank for d in order])


@rule("aten.transpose.int")
def transpose(low: Lowering, node: Node, x: TensorValue, first: int, second: int) -> TensorValue:
    if not x.rank:
        return x
    order = list(range(x.rank))
    order[first % x.rank], order[second % x.rank] = order[second % x.rank], order[first % x.rank]
    return permuted(x, order)


@rule("aten.t.default")
def t(low: Lowering, node: Node, x: TensorValue) -> TensorValue:
    return permuted(x, list(range(x.rank))[::-1])


@rule("aten.movedim.int", "aten.moveaxis.int")
def movedim(low: Lowering, node: Node, x: TensorValue, source: int, target: int) -> TensorValue:
    order = [d for d in range(x.rank) if d != source % x.rank]
    order.insert(target % x.rank, source % x.rank)
    return permuted(x, order)


def _repeated(x: TensorValue, shape: Sequence[Expr], places: Sequence[int]) -> TensorValue:
    """``x`` with its dimension ``k`` as dimension ``places[k]`` of ``shape``, repeated along all others."""
    dims = [as_expr(d) for d in fresh_dims(shape)]
    return x.view(shape, [as_expr(0) if n == 1 else dims[k] for n, k in zip(x.shape, places, strict=True)])


@rule("aten.expand.default")
def expand(low: Lowering, node: Node, x: TensorValue, size: Sequence[object], implicit: bool = False) -> TensorValue:
    shape = shape_of(node)
    return _repeated(x, shape, range(len(shape) - x.rank, len(shape)))


@rule("prims.broadcast_in_dim.default")
def broadcast_in_dim(
    low: Lowering, node: Node, x: TensorValue, size: Sequence[object], places: Sequence[int]
) -> TensorValue:
    return _repeated(x, shape_of(node), places)


@rule("aten.unsqueeze.default")
def unsqueeze(low: Lowering, node: Node, x: TensorValue, dim: int) -> TensorValue:
    shape = shape_of(node)
    dims = [as_expr(d) for d in fresh_dims(shape)]
    del dims[dim % (x.rank + 1)]
    return x.view(shape, dims)


@rule("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "prims.squeeze.default")
def squeeze(low: Lowering, node: Node, x: TensorValue, dim: int | Sequence[int] | None = None) -> TensorValue:
    named = range(x.rank) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {dimension(d, x.rank) for d in named if x.rank and x.shape[dimension(d, x.rank)] == 1}
    shape = shape_of(node)
    if len(shape) != x.rank - len(gone):
        raise Decline("dimensions of size one known only at run time")
    dims = iter(fresh_dims(shape))
    return x.view(shape, [as_expr(0) if d in gone else as_expr(next(dims)) for d in range(x.rank)])


def _start(node: Node, dim: int, start: Any, place: Callable[[Any, Any], Expr]) -> Expr:
    """The start of a slice; where its sign or clamping is a run-time matter, as torch recorded it in the offset."""
    source, result = given(node.args[0]), node.meta["val"]
    try:
        return place(start, source.shape[dim] if source.dim() else 1)
    except Decline:
        if "_copy." in str(node.target):
            raise
        distance, stride = result.storage_offset() - source.storage_offset(), expr_of(source.stride(dim))
        if stride == 0:
            return as_expr(0)
        if depends_on_data(distance):
            raise
        return expr_of(distance) // stride


@rule("aten.slice.Tensor")
def slice_(
    low: Lowering,
    node: Node,
    x: TensorValue,
    dim: int = 0,
    start: int | Expr | None = None,
    end: int | Expr | None = None,
    step: int | Expr = 1,
) -> TensorValue:
    dim = dimension(dim, x.rank)
    first = _start(node, dim, argument(node, 2, "start"), slice_start)
    return sliced(x, dim, first, shape_of(node)[dim], slice_step(argument(node, 4, "step")))


@rule("aten.narrow.default")
def narrow(low: Lowering, node: Node, x: TensorValue, dim: int, start: int | Expr, length: int | Expr) -> TensorValue:
    dim = dimension(dim, x.rank)
    first = _start(node, dim, argument(node, 2, "start"), slice_start)
    return sliced(x, dim, first, shape_of(node)[dim])


@rule("aten.select.int")
def select(low: Lowering, node: Node, x: TensorValue, dim: int, index: int | Expr) -> TensorValue:
    dim = dimension(dim, x.rank)
    return selected(x, dim, _start(node, dim, argument(node, 2, "index"), select_place))


@rule(
    *("aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default"),
    *("aten.unsafe_split.Tensor", "aten.unsafe_split_with_sizes.default", "aten.unsafe_chunk.default"),
)
def split(low: Lowering, node: Node, x: TensorValue, how: object, dim: int = 0) -> list[TensorValue]:
    dim = dimension(dim, x.rank)
    pieces: list[TensorValue] = []
    start = as_expr(0)
    for k in range(len(node.meta["val"])):
        length = shape_of(node, k)[dim]
        pieces.append(sliced(x, dim, start, length))
        start = start + length
    return pieces


@rule("aten.unbind.int")
def unbind(low: Lowering, node: Node, x: TensorValue, dim: int = 0) -> list[TensorValue]:
    dim = dimension(dim, x.rank)
    return [selected(x, dim, as_expr(k)) for k in range(len(node.meta["val"]))]


@rule("aten.diagonal.default")
def diagonal(low: Lowering, node: Node, x: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorValue:
    dim1, dim2 = dim1 % x.rank, dim2 % x.rank
    shape = shape_of(node)
    *others, along = (as_expr(d) for d in fresh_dims(shape))
    rest = iter(others)
    places = {dim1: along + max(-offset, 0), dim2: along + max(offset, 0)}
    return x.view(shape, [places[k] if k in places else next(rest) for k in range(x.rank)])


@rule("aten.unfold.default")
def unfold(low: Lowering, node: Node, x: TensorValue, dim: int, size: int, step: int) -> TensorValue:
    shape = shape_of(node)
    if not x.rank:
        return x.view(shape, [])
    *dims, within = (as_expr(d) for d in fresh_dims(shape))
    dim = dim % x.rank
    return x.view(shape, [d * step + within if k == dim else d for k, d in enumerate(dims)])


def _register_copy(name: str, viewer: Callable[..., Any]) -> None:
    """The variant of a view that copies."""

    @rule(name)
    def copied(low: Lowering, node: Node, *args: Any, **kwargs: Any) -> Any:
        seen = viewer(low, node, *args, **kwargs)
        if not isinstance(seen, list):
            return low.into(node, low.result(node), lambda v: v, seen, dtype=seen.dtype)
        return [low.into(node, low.result(node, k), lambda v: v, v, dtype=v.dtype) for k, v in enumerate(seen)]


for _name in (
    *("view.default", "alias.default", "detach.default", "permute.default", "transpose.int", "t.default"),
    *("expand.default", "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "slice.Tensor"),
    *("select.int", "split.Tensor", "split_with_sizes.default", "unbind.int", "diagonal.default", "unfold.default"),
    "narrow.default",
):
    _base, _overload = _name.split(".")
    if hasattr(torch.ops.aten, f"{_base}_copy"):
        _register_copy(f"aten.{_base}_copy.{_overload}", RULES[f"aten.{_name}"])
