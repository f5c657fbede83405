"""Writing elements at computed places, out of place: a copy, then the writes. Gradients of views belong here too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Node

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Expr, as_expr, prod
from lamina.lower.builder import NestBuilder, Value, added_up, opmath
from lamina.lower.context import Lowering, Operand
from lamina.lower.creation import ZEROS
from lamina.lower.indexing import advanced_position, in_dimension, out_of_range, unravelled
from lamina.lower.positions import (
    all_of,
    at_least_1d,
    bounded_index,
    copy_of,
    dimension,
    filled,
    inside,
    replaced,
    wrapped_index,
)
from lamina.lower.reshaping import reshaped
from lamina.lower.rules import Decline, rule
from lamina.lower.sums import rounded_sums, sums_of_additions, sums_of_halves
from lamina.lower.values import TensorValue
from lamina.lower.windows import COMPARED, WRITTEN_OUT

__all__: list[str] = []


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
    looped = not covers.is_int or not 0 < covers.const <= WRITTEN_OUT
    b = low.nest(node, [*out.shape, covers] if looped else out.shape)
    at = b.axes[: out.rank]
    values = []
    for back in [b.axes[-1]] if looped else [as_expr(k) for k in range(covers.const)]:
        window = at[dim] // step - back
        within = at[dim] % step + back * step
        reached = None if within.below(size) else inside(b, within, as_expr(size))
        valid = all_of([inside(b, window, grad.shape[dim]), reached])
        values.append(b.load(grad, [*replaced(at, dim, window), within], valid).to(opmath(grad.dtype)))
    b.store(out, b.reduce("sum", values[0], [out.rank]) if looped else added_up(values), at)
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
    return _added(low, node, x, dim, index, source, include_self=True)


def _added(
    low: Lowering, node: Node, x: TensorValue, dim: int, index: TensorValue, source: TensorValue, include_self: bool
) -> TensorValue:
    """``source`` added to ``x`` at ``index``; places that are added to begin at zero without ``include_self``."""
    low.plain(x.dtype)
    if (found := _compared(low, node, dim, index, source)) is not None:
        return found
    sums = sums_of_additions(low, node, x, prod(index.shape))
    out = copy_of(low, node, x) if sums is None else sums
    if not include_self:
        _scatter_into(low, node, out, dim, index, 0, "set")
    _scatter_into(low, node, out, dim, index, source, "add")
    return out if sums is None else rounded_sums(low, node, sums)


def _compared(low: Lowering, node: Node, dim: int, index: TensorValue, source: TensorValue) -> TensorValue | None:
    """``source`` added to zeros on a GPU, where each element looks which of few places name it: no zeros are written
    first, nothing is added in memory, and readers may compute it themselves.

    ``None`` where there are more places (32 among 32, in 1.1e9 pairs: a program took 4.3 ms, with Inductor's additions
    0.8, H200), and where what is added to is not known to be zeros (of a negative zero it would matter whether anything
    was added).
    """
    out = low.result(node)
    begins = node.args[0]
    zeros = isinstance(begins, Node) and (str(begins.target) in ZEROS or _full_of_zeros(begins))
    if not zeros or not low.on_gpu(out) or not DTYPES[out.dtype].is_float or not out.rank or index.rank != out.rank:
        return None
    dim = dimension(dim, out.rank)
    count, size = index.shape[dim], out.shape[dim]
    others = [(a, b) for k, (a, b) in enumerate(zip(index.shape, out.shape, strict=True)) if k != dim]
    if not count.is_int or not 0 < count.const <= COMPARED // 4 or any(a != b for a, b in others):
        return None
    b = low.nest(node, out.shape)
    own = b.index(b.axes[dim])
    values = []
    for k in range(count.const):
        named = replaced(b.axes, dim, as_expr(k))
        found = b.load(index, named).to("int64")
        bounded_index(b, found, size, out_of_range(dim, size), "RuntimeError")
        values.append(b.where(found.equals(own), b.load(source, named).to(opmath(out.dtype)), 0))
    b.store(out, added_up(values))
    low.finish(b)
    return out


def _full_of_zeros(node: Node) -> bool:
    value = node.args[1] if str(node.target) == "aten.full.default" else None
    return isinstance(value, int | float) and not isinstance(value, bool) and value == 0 and str(value)[0] != "-"


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
    return _added(low, node, x, dim, index, source, include_self)


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
    in_float: bool = False,
) -> TensorValue:
    """A copy of ``x`` in which slice ``index[k]`` of dimension ``dim`` takes slice ``k`` of what ``value`` gives.

    With ``in_float`` a result of half precision is added up in float32 on CPUs.
    """
    low.plain(x.dtype)
    dim, places = dimension(dim, x.rank), at_least_1d(index)
    count = prod(replaced(at_least_1d(x).shape, dim, places.shape[0]))
    sums = sums_of_additions(low, node, x, count, in_float) if mode == "add" else None
    out = copy_of(low, node, x) if sums is None else sums
    target = at_least_1d(out)
    b = low.nest(node, replaced(target.shape, dim, places.shape[0]))
    found = wrapped_index if wrapped else bounded_index
    size = target.shape[dim]
    place = found(b, b.load(places, [b.axes[dim]]), size, who + out_of_range(dim, size), error)
    b.store(target, value(b), replaced(b.axes, dim, place), mode)
    low.finish(b)
    return out if sums is None else rounded_sums(low, node, sums)


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
    error = "RuntimeError" if scattered else "IndexError"
    return _along(low, node, x, dim, index, value, "add", error=error, in_float=scattered)


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


@rule("aten.max_unpool2d.default", "aten.max_unpool3d.default")
def max_unpool(
    low: Lowering, node: Node, x: TensorValue, index: TensorValue, sizes: Sequence[Any], *window: Any
) -> TensorValue:
    """Zeros, but for each element's place in its plane."""
    low.plain(x.dtype)
    out, rank = filled(low, node), len(sizes)
    plane = out.shape[-rank:]
    b = low.nest(node, x.shape)
    volume = "x".join(map(str, plane))
    message = f"Found an invalid max index (output volumes are of size {volume})"  # eager also names the index
    place = bounded_index(b, b.load(index), prod(plane), message, "RuntimeError")
    b.store(out, b.load(x).to(out.dtype), [*b.axes[:-rank], *unravelled(place, plane)])
    low.finish(b)
    return out
