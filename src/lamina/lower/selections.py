"""Writing to a slice, an index or a diagonal of a tensor, out of place, and the gradients of such views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Node

from lamina.base.symbolic.torch_private import is_true
from lamina.ir.index import Expr
from lamina.lower.builder import NestBuilder, Value
from lamina.lower.context import Lowering
from lamina.lower.positions import (
    all_of,
    argument,
    dimension,
    given,
    inside,
    replaced,
    select_place,
    slice_length,
    slice_start,
    slice_step,
)
from lamina.lower.rules import Decline, rule
from lamina.lower.sizes import expr_of
from lamina.lower.values import TensorValue

__all__: list[str] = []

Selection = Callable[[NestBuilder], tuple[Value, Sequence[Expr]]]

"""Whether the nest's position is in a selection, and which element of the selection's tensor it then is."""


def _slice_selection(dim: int, start: Expr, step: Expr, length: Expr) -> Selection:
    def selection(b: NestBuilder) -> tuple[Value, Sequence[Expr]]:
        distance = b.axes[dim] - start
        place = distance // step
        conditions = [inside(b, place, length)]
        if step != 1:
            conditions.append(b.index(distance % step).equals(0))
        found = all_of(conditions)
        return b.constant(True, "bool") if found is None else found, replaced(b.axes, dim, place)

    return selection


def _select_selection(dim: int, place: Expr) -> Selection:
    def selection(b: NestBuilder) -> tuple[Value, Sequence[Expr]]:
        rest = [a for k, a in enumerate(b.axes) if k != dim]
        return b.index(b.axes[dim]).equals(b.index(place)), rest

    return selection


def _diagonal_selection(rank: int, offset: int, dim1: int, dim2: int) -> Selection:
    dim1, dim2 = dim1 % rank, dim2 % rank

    def selection(b: NestBuilder) -> tuple[Value, Sequence[Expr]]:
        i, j = b.axes[dim1], b.axes[dim2]
        rest = [a for k, a in enumerate(b.axes) if k not in (dim1, dim2)]
        return b.index(i + offset).equals(b.index(j)), [*rest, i - max(-offset, 0)]

    return selection


def _selection_replaced(
    low: Lowering, node: Node, x: TensorValue, source: TensorValue, selection: Selection
) -> TensorValue:
    """``x`` with the elements of a selection taken from ``source``: one pass."""
    out = low.result(node)
    low.plain(x.dtype, source.dtype)
    b = low.nest(node, out.shape)
    here, place = selection(b)
    b.store(out, b.where(here, b.load(source, place, here).to(x.dtype), b.load(x)))
    low.finish(b)
    return out


def _require_shape(node: Node, shape: Sequence[Any]) -> None:
    """Decline unless what is written has, for certain, the shape of the selection: eager raises where it has not."""
    source = given(node.args[1]).shape
    if len(source) != len(shape) or not all(is_true(n == m) for n, m in zip(source, shape, strict=True)):
        raise Decline("what is written may not have the shape of where it goes")


def _selection_of_zeros(low: Lowering, node: Node, grad: TensorValue, selection: Selection) -> TensorValue:
    """Zeros with the elements of a selection taken from ``grad``: the gradient of a view."""
    out = low.result(node)
    low.plain(grad.dtype)
    b = low.nest(node, out.shape)
    here, place = selection(b)
    b.store(out, b.load(grad, place, here))
    low.finish(b)
    return out


def _size(node: Node, dim: int) -> Any:
    """The size of dimension ``dim`` of what is written to, or whose gradient this is, as torch has it."""
    of = node.args[1] if "_backward" in str(node.target) else given(node.args[0]).shape
    return given(of[dim]) if isinstance(of, Sequence) and len(of) else 1


def _first(start: Any, end: int | Expr | None, step: Expr, size: Any, length: Expr) -> Expr:
    """The start of a slice of ``length`` elements."""
    try:
        return slice_start(start, size)
    except Decline:
        if step == 1 and (end is None or (isinstance(end, int) and end == 2**63 - 1)):
            return expr_of(given(size)) - length
        raise


@rule("aten.slice_scatter.default")
def slice_scatter(
    low: Lowering,
    node: Node,
    x: TensorValue,
    source: TensorValue,
    dim: int = 0,
    start: int | Expr | None = None,
    end: int | Expr | None = None,
    step: int | Expr = 1,
) -> TensorValue:
    dim, length = dimension(dim, x.rank), source.shape[dimension(dim, x.rank)]
    stride, sizes = slice_step(argument(node, 5, "step")), list(given(node.args[0]).shape)
    ends = (argument(node, 3, "start"), argument(node, 4, "end"), argument(node, 5, "step"))
    _require_shape(node, [*sizes[:dim], slice_length(*ends, sizes[dim]), *sizes[dim + 1 :]])
    first = _first(argument(node, 3, "start"), end, stride, _size(node, dim), length)
    return _selection_replaced(low, node, x, source, _slice_selection(dim, first, stride, length))


@rule("aten.slice_backward.default")
def slice_backward(
    low: Lowering,
    node: Node,
    grad: TensorValue,
    sizes: Sequence[Any],
    dim: int,
    start: int | Expr,
    end: int | Expr,
    step: int | Expr,
) -> TensorValue:
    dim, length = dimension(dim, grad.rank), grad.shape[dimension(dim, grad.rank)]
    stride = slice_step(node.args[5])
    first = _first(node.args[3], end, stride, _size(node, dim), length)
    return _selection_of_zeros(low, node, grad, _slice_selection(dim, first, stride, length))


@rule("aten.select_scatter.default")
def select_scatter(
    low: Lowering, node: Node, x: TensorValue, source: TensorValue, dim: int, index: int | Expr
) -> TensorValue:
    dim, sizes = dimension(dim, x.rank), list(given(node.args[0]).shape)
    _require_shape(node, [*sizes[:dim], *sizes[dim + 1 :]])
    return _selection_replaced(
        low, node, x, source, _select_selection(dim, select_place(node.args[3], _size(node, dim)))
    )


@rule("aten.select_backward.default")
def select_backward(
    low: Lowering, node: Node, grad: TensorValue, sizes: Sequence[Any], dim: int, index: int | Expr
) -> TensorValue:
    dim = dimension(dim, len(sizes))
    return _selection_of_zeros(low, node, grad, _select_selection(dim, select_place(node.args[3], _size(node, dim))))


@rule("aten.diagonal_scatter.default")
def diagonal_scatter(
    low: Lowering, node: Node, x: TensorValue, source: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorValue:
    sizes, dim1, dim2 = list(given(node.args[0]).shape), dim1 % x.rank, dim2 % x.rank
    rows, columns = sizes[dim1] + min(offset, 0), sizes[dim2] - max(offset, 0)
    length = rows if is_true(rows <= columns) else columns if is_true(columns <= rows) else None
    if length is None:
        raise Decline("a diagonal of a length known only at run time")
    others = [n for k, n in enumerate(sizes) if k not in (dim1, dim2)]
    _require_shape(node, [*others, length])
    return _selection_replaced(low, node, x, source, _diagonal_selection(x.rank, offset, dim1, dim2))


@rule("aten.diagonal_backward.default")
def diagonal_backward(
    low: Lowering, node: Node, grad: TensorValue, sizes: Sequence[Any], offset: int, dim1: int, dim2: int
) -> TensorValue:
    return _selection_of_zeros(low, node, grad, _diagonal_selection(len(sizes), offset, dim1, dim2))
