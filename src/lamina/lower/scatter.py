"""Writing elements at computed places, out of place: a copy, then the writes. Gradients of views belong here too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Node

from lamina.base.symbolic.torch_private import is_true
from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import NestBuilder, Value, opmath
from lamina.lower.context import Lowering, Operand
from lamina.lower.indexing import advanced_position, in_dimension, out_of_range, unravelled
from lamina.lower.positions import (
    all_of,
    argument,
    at_least_1d,
    bounded_index,
    copy_of,
    dimension,
    given,
    inside,
    replaced,
    select_place,
    slice_length,
    slice_start,
    slice_step,
    wrapped_index,
)
from lamina.lower.reshaping import reshaped
from lamina.lower.rules import Decline, rule
from lamina.lower.sizes import expr_of
from lamina.lower.sums import rounded_sums, sums_of_halves
from lamina.lower.values import TensorValue

__all__: list[str] = []

_WRITTEN_OUT = 27
"""Windows that an element is in up to which each is written out; sums over more of them are loops."""

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


@rule("aten.unfold_backward.default")
def unfold_backward(
    low: Lowering, node: Node, grad: TensorValue, sizes: Sequence[Any], dim: int, size: int, step: int
) -> TensorValue:
    """Each element sums the windows it is in."""
    out = low.result(node)
    low.plain(grad.dtype)
    if not sizes:
        return low.into(node, out, lambda v: v, grad.view([], [as_expr(0)]), dtype=grad.dtype)
    dim = dim % len(sizes)
    covers = as_expr(-(-size // step))
    looped = not covers.is_int or not 0 < covers.const <= _WRITTEN_OUT
    b = low.nest(node, [*out.shape, covers] if looped else out.shape)
    at = b.axes[: out.rank]
    values = []
    for back in [b.axes[-1]] if looped else [as_expr(k) for k in range(covers.const)]:
        window = at[dim] // step - back
        within = at[dim] % step + back * step
        reached = None if within.below(size) else inside(b, within, as_expr(size))
        valid = all_of([inside(b, window, grad.shape[dim]), reached])
        values.append(b.load(grad, [*replaced(at, dim, window), within], valid).to(opmath(grad.dtype)))
    total = functools.reduce(lambda one, other: one + other, values)
    b.store(out, b.reduce("sum", total, [out.rank]) if looped else total, at)
    low.finish(b)
    return out


@rule("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(
    low: Lowering,
    node: Node,
    x: TensorValue,
    indices: Sequence[TensorValue | None],
    values: TensorValue,
    accumulate: bool = False,
) -> TensorValue:
    low.plain(x.dtype)
    used = [index for index in indices if index is not None]
    if not used:
        raise Decline("no index tensor")
    sums = sums_of_halves(low, node, x) if accumulate else None
    out = copy_of(low, node, x) if sums is None else sums
    shared = _broadcast_shapes(used)
    first = next(k for k, index in enumerate(indices) if index is not None)
    last = max(k for k, index in enumerate(indices) if index is not None)
    kept = [n for k, n in enumerate(x.shape) if k >= len(indices) or indices[k] is None]
    at = first if last - first + 1 == len(used) else 0
    b = low.nest(node, [*kept[:at], *shared, *kept[at:]])
    position = advanced_position(b, x, indices, len(shared))
    b.store(out, b.load(values).to(out.dtype), position, "add" if accumulate else "set")
    low.finish(b)
    return out if sums is None else rounded_sums(low, node, sums)


def _broadcast_shapes(tensors: Sequence[TensorValue]) -> list[Expr]:
    rank = max(t.rank for t in tensors)
    shape: list[Expr] = []
    for k in range(-rank, 0):
        sizes = [t.shape[k] for t in tensors if t.rank >= -k]
        shape.append(next((n for n in sizes if n != 1), sizes[0]))
    return shape


def _scatter_into(
    low: Lowering, node: Node, out: TensorValue, dim: int, index: TensorValue, source: Operand, mode: str
) -> TensorValue:
    """Write ``source`` (a tensor at least as large as ``index``, or a number) into ``out`` at ``index``."""
    if any(n == 0 for n in index.shape):  # such an index may have any number of dimensions
        return out
    target, places = at_least_1d(out), at_least_1d(index)
    b = low.nest(node, places.shape)
    position = in_dimension(b, target, dimension(dim, target.rank), places, b.axes)
    if isinstance(source, TensorValue):
        value = b.load(at_least_1d(source), b.axes).to(out.dtype)
    else:
        low.require_fit(out.dtype, source)
        value = low.operand(b, source, out.dtype)
    b.store(target, value, position, mode)
    low.finish(b)
    return out


@rule("aten.scatter.src", "aten.scatter.value")
def scatter(low: Lowering, node: Node, x: TensorValue, dim: int, index: TensorValue, source: Operand) -> TensorValue:
    low.plain(x.dtype)
    return _scatter_into(low, node, copy_of(low, node, x), dim, index, source, "set")


@rule("aten.scatter_add.default")
def scatter_add(
    low: Lowering, node: Node, x: TensorValue, dim: int, index: TensorValue, source: TensorValue
) -> TensorValue:
    low.plain(x.dtype)
    return _scatter_into(low, node, copy_of(low, node, x), dim, index, source, "add")


@rule("aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter_with(
    low: Lowering, node: Node, x: TensorValue, dim: int, index: TensorValue, source: Operand, *, reduce: str
) -> TensorValue:
    if reduce != "add":
        raise Decline(f"colliding indices combined by {reduce}")
    low.plain(x.dtype)
    return _scatter_into(low, node, copy_of(low, node, x), dim, index, source, "add")


@rule("aten.scatter_reduce.two")
def scatter_reduce(
    low: Lowering,
    node: Node,
    x: TensorValue,
    dim: int,
    index: TensorValue,
    source: TensorValue,
    reduce: str,
    *,
    include_self: bool = True,
) -> TensorValue:
    if reduce != "sum":
        raise Decline(f"colliding indices combined by {reduce}")
    low.plain(x.dtype)
    out = copy_of(low, node, x)
    if not include_self:
        _scatter_into(low, node, out, dim, index, 0, "set")
    return _scatter_into(low, node, out, dim, index, source, "add")


def _along(
    low: Lowering,
    node: Node,
    x: TensorValue,
    dim: int,
    index: TensorValue,
    value: Callable[[NestBuilder], Value],
    mode: str = "set",
    wrapped: bool = False,
    who: str = "",
    error: str = "IndexError",
) -> TensorValue:
    """A copy of ``x`` in which slice ``index[k]`` of dimension ``dim`` takes slice ``k`` of what ``value`` gives."""
    low.plain(x.dtype)
    out = copy_of(low, node, x)
    dim, target, places = dimension(dim, x.rank), at_least_1d(out), at_least_1d(index)
    b = low.nest(node, replaced(target.shape, dim, places.shape[0]))
    found = wrapped_index if wrapped else bounded_index
    size = target.shape[dim]
    place = found(b, b.load(places, [b.axes[dim]]), size, who + out_of_range(dim, size), error)
    b.store(target, value(b), replaced(b.axes, dim, place), mode)
    low.finish(b)
    return out


def _slices(b: NestBuilder, source: TensorValue, dim: int) -> Value:
    """The source at the nest's position; a source of one slice may come without the dimension."""
    if source.rank == len(b.axes):
        return b.load(source)
    return b.load(source, [a for k, a in enumerate(b.axes) if k != dim] if source.rank else [])


@rule("aten.index_add.default")
def index_add(
    low: Lowering,
    node: Node,
    x: TensorValue,
    dim: int,
    index: TensorValue,
    source: TensorValue,
    *,
    alpha: Operand = 1,
) -> TensorValue:
    if not isinstance(alpha, int | float):
        raise Decline("a factor known only at run time")

    def value(b: NestBuilder) -> Value:
        v = _slices(b, source, dimension(dim, x.rank)).to(opmath(x.dtype))
        return v if alpha == 1 else v & b.constant(alpha, "bool") if v.dtype == "bool" else v * alpha

    # Along an outer dimension eager adds by its scatter_add, which has another error.
    scattered = x.rank > 1 and alpha == 1 and dimension(dim, x.rank) in (0, x.rank - 1)
    return _along(low, node, x, dim, index, value, "add", error="RuntimeError" if scattered else "IndexError")


@rule("aten.index_copy.default")
def index_copy(
    low: Lowering, node: Node, x: TensorValue, dim: int, index: TensorValue, source: TensorValue
) -> TensorValue:
    return _along(low, node, x, dim, index, lambda b: _slices(b, source, dimension(dim, x.rank)), who="index_copy_(): ")


@rule("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(low: Lowering, node: Node, x: TensorValue, dim: int, index: TensorValue, value: Operand) -> TensorValue:
    low.require_fit(x.dtype, value)
    return _along(low, node, x, dim, index, lambda b: low.operand(b, value, x.dtype), wrapped=True)


@rule("aten.put.default")
def put(
    low: Lowering, node: Node, x: TensorValue, index: TensorValue, source: TensorValue, accumulate: bool = False
) -> TensorValue:
    low.plain(x.dtype)
    out = copy_of(low, node, x)
    b = low.nest(node, index.shape)
    place = wrapped_index(b, b.load(index), x.numel(), "out of range: tried to access an index beyond the elements")
    value = b.load(reshaped(low, source, index.shape))
    b.store(out, value, unravelled(place, x.shape), "add" if accumulate else "set")
    low.finish(b)
    return out
