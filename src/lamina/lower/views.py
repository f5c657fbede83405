"""Views: no code, only another way to index the same buffer."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from lamina.ir.index import Expr, as_expr
from lamina.lower.context import Lowering
from lamina.lower.rules import Decline, rule
from lamina.lower.sizes import expr_of
from lamina.lower.values import TensorValue, fresh_dims, reshape_index

__all__ = ["permuted", "reshaped", "sliced"]


def shape_of(node: Node, position: int | None = None) -> list[Expr]:
    """The shape of the node's result (of its ``position``-th result)."""
    val = node.meta["val"]
    return [expr_of(n) for n in (val if position is None else val[position]).shape]


def reshaped(x: TensorValue, shape: Sequence[Expr]) -> TensorValue:
    """The elements of ``x`` in row-major order, in another shape."""
    return x.view(shape, reshape_index(x.shape, shape))


def permuted(x: TensorValue, order: Sequence[int]) -> TensorValue:
    """Dimension ``k`` of the result is dimension ``order[k]`` of ``x``."""
    shape = [x.shape[d] for d in order]
    dims = fresh_dims(shape)
    return x.view(shape, [as_expr(dims[order.index(d)]) for d in range(x.rank)])


def sliced(x: TensorValue, dim: int, start: Expr, length: Expr, step: int = 1) -> TensorValue:
    """``length`` elements of dimension ``dim``: ``start``, ``start + step``, ..."""
    shape = [*x.shape[:dim], length, *x.shape[dim + 1 :]]
    position = [as_expr(d) for d in fresh_dims(shape)]
    position[dim] = position[dim] * step + start
    return x.view(shape, position)



@rule("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten._reshape_alias.default")
def view(low: Lowering, node: Node, x: TensorValue, *_: object) -> TensorValue:
    return reshaped(x, shape_of(node))


@rule("aten.alias.default", "aten.detach.default", "aten.lift_fresh.default")
def alias(low: Lowering, node: Node, x: TensorValue) -> TensorValue:
    return x


@rule("aten.permute.default")
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
    return permuted(x, [1, 0]) if x.rank == 2 else x


@rule("aten.movedim.int", "aten.moveaxis.int")
def movedim(low: Lowering, node: Node, x: TensorValue, source: int, target: int) -> TensorValue:
    order = [d for d in range(x.rank) if d != source % x.rank]
    order.insert(target % x.rank, source % x.rank)
    return permuted(x, order)


@rule("aten.expand.default")
def expand(low: Lowering, node: Node, x: TensorValue, size: Sequence[object], implicit: bool = False) -> TensorValue:
    shape = shape_of(node)
    dims = [as_expr(d) for d in fresh_dims(shape)]
    skip = len(shape) - x.rank
    position = [as_expr(0) if n == 1 else dims[skip + k] for k, n in enumerate(x.shape)]
    return x.view(shape, position)


@rule("aten.unsqueeze.default", "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims")
def squeeze(low: Lowering, node: Node, x: TensorValue, *_: object) -> TensorValue:
    return reshaped(x, shape_of(node))


def _clamped(value: int | Expr | None, default: Expr, extent: Expr) -> Expr:
    """A slice bound as Python takes it: negative from the end, cut to the extent."""
    if value is None:
        return default
    bound = as_expr(value)
    if bound.is_int and bound.const < 0:
        bound = bound + extent
    if bound.is_int and extent.is_int:
        return as_expr(min(max(bound.const, 0), extent.const))
    if bound.is_int and bound.const >= (1 << 62):
        return extent
    return bound


@rule("aten.slice.Tensor")
def slice_(
    low: Lowering,
    node: Node,
    x: TensorValue,
    dim: int = 0,
    start: int | Expr | None = None,
    end: int | Expr | None = None,
    step: int = 1,
) -> TensorValue:
    dim %= x.rank
    if not isinstance(step, int):
        raise Decline("a slice with a symbolic step")
    first = _clamped(start, as_expr(0), x.shape[dim])
    return sliced(x, dim, first, shape_of(node)[dim], step)


@rule("aten.narrow.default")
def narrow(low: Lowering, node: Node, x: TensorValue, dim: int, start: int | Expr, length: int | Expr) -> TensorValue:
    dim %= x.rank
    return sliced(x, dim, _clamped(start, as_expr(0), x.shape[dim]), as_expr(length))


@rule("aten.select.int")
def select(low: Lowering, node: Node, x: TensorValue, dim: int, index: int | Expr) -> TensorValue:
    dim %= x.rank
    place = as_expr(index)
    if not place.is_int:
        low_bound = place.bounds()[0]
        if low_bound is None or low_bound < 0:
            raise Decline("a select at an index of unknown sign")
    elif place.const < 0:
        place = place + x.shape[dim]
    shape = [*x.shape[:dim], *x.shape[dim + 1 :]]
    dims = [as_expr(d) for d in fresh_dims(shape)]
    return x.view(shape, [*dims[:dim], place, *dims[dim:]])


@rule(
    "aten.split.Tensor",
    "aten.split_with_sizes.default",
    "aten.chunk.default",
    "aten.tensor_split.sections",
    "aten.split.sizes",
)
def split(low: Lowering, node: Node, x: TensorValue, how: object, dim: int = 0) -> list[TensorValue]:
    dim %= x.rank
    parts: list[TensorValue] = []
    start = as_expr(0)
    for k in range(len(node.meta["val"])):
        length = shape_of(node, k)[dim]
        parts.append(sliced(x, dim, start, length))
        start = start + length
    return parts


@rule("aten.unbind.int")
def unbind(low: Lowering, node: Node, x: TensorValue, dim: int = 0) -> list[TensorValue]:
    return [select(low, node, x, dim, k) for k in range(len(node.meta["val"]))]


@rule("aten.diagonal.default")
def diagonal(
    low: Lowering, node: Node, x: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorValue:
    dim1, dim2 = dim1 % x.rank, dim2 % x.rank
    shape = shape_of(node)
    dims = [as_expr(d) for d in fresh_dims(shape)]
    rest = iter(dims[:-1])
    position = [as_expr(0)] * x.rank
    for d in range(x.rank):
        if d == dim1:
            position[d] = dims[-1] + max(-offset, 0)
        elif d == dim2:
            position[d] = dims[-1] + max(offset, 0)
        else:
            position[d] = next(rest)
    return x.view(shape, position)


@rule("aten.unfold.default")
def unfold(low: Lowering, node: Node, x: TensorValue, dim: int, size: int, step: int) -> TensorValue:
    if not x.rank or not isinstance(step, int):
        raise Decline("unfold of a scalar, or with a symbolic step")
    dim %= x.rank
    shape = shape_of(node)
    dims = [as_expr(d) for d in fresh_dims(shape)]
    position = dims[:-1]
    position[dim] = position[dim] * step + dims[-1]
    return x.view(shape, position)


@rule("aten.flip.default")
def flip(low: Lowering, node: Node, x: TensorValue, where: Sequence[int]) -> TensorValue:
    out = low.result(node)
    b = low.nest(node, out.shape)
    turned = {d % x.rank for d in where} if x.rank else set()
    position = [x.shape[d] - 1 - a if d in turned else a for d, a in enumerate(b.axes)]
    b.store(out, b.load(x, position))
    low.finish(b)
    return out
