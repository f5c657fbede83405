"""Pooling: the largest of each window, where it is, and the gradient."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from lamina.base.dtypes import DTYPES, torch_dtype
from lamina.ir.index import Expr, as_expr, prod
from lamina.lower.builder import NestBuilder, Scalar, Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.indexing import unravelled
from lamina.lower.positions import filled
from lamina.lower.rules import rule
from lamina.lower.values import TensorValue
from lamina.lower.windows import COMPARED, Fixed, Number, Sliding, fixed_spans

__all__: list[str] = []


def _smallest(dtype: str) -> Scalar:
    if DTYPES[dtype].is_float:
        return -math.inf
    return torch.iinfo(torch_dtype(dtype)).min


def _wants(node: Node, position: int) -> bool:
    """Whether anything reads the ``position``-th result."""
    return any(user.target is not operator.getitem or user.args[1] == position for user in node.users)


def _flat(place: Sequence[Expr], sizes: Sequence[Expr]) -> Expr:
    number = as_expr(0)
    for p, n in zip(place, sizes, strict=True):
        number = number * n + p
    return number


def _index_dtype(sizes: Sequence[Expr]) -> str:
    """The type to compute flat places in: 32 bits where they are known to do."""
    area = prod(sizes)
    return "int32" if area.is_int and int(area) < 2**31 else "int64"


def _first_place(b: NestBuilder, spans: Sequence[Fixed], at: Sequence[Expr], dtype: str, offsets: bool) -> Value:
    """The flat place of the first element of a window that is not padding: what an all-smallest window chooses."""
    starts = [span.place(a, 0) for span, a in zip(spans, at, strict=True)]
    if all(start.nonnegative() for start in starts):
        return b.index(_place(spans, at, (0,) * len(spans), offsets), dtype)
    result = b.constant(0, dtype)
    for span, start in zip(spans, starts, strict=True):
        corner = start if offsets else as_expr(0)
        place = b.index(start - corner, dtype)
        if not start.nonnegative():
            place = b.where(b.index(start, dtype) < 0, b.index(start % span.dilation - corner, dtype), place)
        size = b.constant(int(span.source), dtype) if span.source.is_int else b.index(span.source, dtype)
        result = result * size + place
    return result


def _place(spans: Sequence[Fixed], at: Sequence[Expr], number: Number, offsets: bool) -> Expr:
    """The flat place of a window's element, or its distance from that of the window's corner."""
    places = [
        as_expr(j) * span.dilation if offsets else span.place(a, j)
        for span, a, j in zip(spans, at, number, strict=True)
    ]
    return _flat(places, [span.source for span in spans])


def _largest_place(s: Sliding, spans: Sequence[Fixed], values: Sequence[Value], dtype: str, offsets: bool) -> Value:
    """The place of the largest element of the window: the first of equals, the last NaN."""
    b = s.b
    best, chosen = values[0], _first_place(b, spans, s.inner, dtype, offsets)
    for number, v in zip(s.numbers[1:], values[1:], strict=True):
        larger = v > best
        if DTYPES[v.dtype].is_float:
            larger = larger | v.op("isnan")
        chosen = b.where(larger, b.index(_place(spans, s.inner, number, offsets), dtype), chosen)
        best = best.op("maximum", v)
    return chosen


def _largest_place_looped(
    s: Sliding, spans: Sequence[Fixed], values: Sequence[Value], dtype: str, offsets: bool
) -> Value:
    """As ``_largest_place``, for a window that is looped over; of several NaNs it gives the first."""
    b = s.b
    counts = [as_expr(span.size) for span in spans]
    number = b.reduce("argmax", values[0], list(range(len(s.at), len(b.axes))))
    within = unravelled(b.loaded(number, prod(counts)), counts)
    found = b.index(_place(spans, s.inner, tuple(within), offsets), dtype)
    if all(span.pad == 0 for span in spans):
        return found
    return b.where(number.equals(0), _first_place(b, spans, s.inner, dtype, offsets), found)


def _max_pool(
    low: Lowering, node: Node, x: TensorValue, rank: int, window: Sequence[Any], offsets: bool = False
) -> list[TensorValue | None]:
    defaults: tuple[Any, ...] = ((), 0, 1, False)
    size, step, pad, dilation, ceil_mode = [*window, *defaults[len(window) - 1 :]]
    out = low.result(node, 0)
    low.plain(x.dtype)
    spans = fixed_spans(x.shape[-rank:], out.shape[-rank:], size, step, pad, dilation, ceil_mode)
    s = Sliding(low, node, out.shape, [span.size for span in spans])
    values = [s.element(x, spans, number, _smallest(x.dtype)).to(opmath(x.dtype)) for number in s.numbers]
    places = low.result(node, 1) if _wants(node, 1) else None
    choose = _largest_place_looped if s.looped else _largest_place
    if not offsets:
        s.b.store(out, s.total("maximum", values), s.at)
    if places is not None:
        s.b.store(places, choose(s, spans, values, _index_dtype(x.shape[-rank:]), offsets), s.at)
    if offsets:  # choices of numbers are made beside the maxima, or conditions wait in registers
        s.b.store(out, s.total("maximum", values), s.at)
    low.finish(s.b)
    return [out, places]


@rule("aten.max_pool2d_with_indices.default")
def max_pool2d(low: Lowering, node: Node, x: TensorValue, *window: Any) -> list[TensorValue | None]:
    return _max_pool(low, node, x, 2, window)


@rule("lamina.max_pool2d_with_offsets.default")
def max_pool2d_with_offsets(low: Lowering, node: Node, x: TensorValue, *window: Any) -> list[TensorValue | None]:
    *shape, _ = window
    return _max_pool(low, node, x, 2, shape, offsets=True)


@rule("aten.max_pool3d_with_indices.default")
def max_pool3d(low: Lowering, node: Node, x: TensorValue, *window: Any) -> list[TensorValue | None]:
    return _max_pool(low, node, x, 3, window)


def _max_pool_backward(
    low: Lowering,
    node: Node,
    grad: TensorValue,
    x: TensorValue,
    rank: int,
    window: Sequence[Any],
    offsets: bool = False,
) -> TensorValue:
    """Zeros, then the gradient of each window added to the element it chose.

    On a GPU each element looks which of the few windows that it is in have chosen it, as ATen does there: no zeros are
    written first, and nothing is added in memory.
    """
    low.plain(grad.dtype)
    *shape, places = window
    spans = fixed_spans(x.shape[-rank:], grad.shape[-rank:], *shape)
    if not low.buffers[grad.buffer].on_cpu and prod(as_expr(s.covers) for s in spans).const <= COMPARED:
        return _gathered(low, node, grad, spans, places, offsets)
    out = filled(low, node)
    sizes = out.shape[-rank:]
    b = low.nest(node, grad.shape)
    place, area = b.load(places), prod(sizes)
    if offsets:
        corner = _place(spans, b.axes[-rank:], (0,) * rank, offsets=False)
        place = place.to("int64") + b.index(corner)
    limit = b.constant(int(area), "int64") if area.is_int else b.index(area)
    inside = (place >= 0) & (place < limit)
    chosen = unravelled(b.loaded(b.where(inside, place, 0), area), sizes)
    b.store(out, b.load(grad), [*b.axes[:-rank], *chosen], "add", inside)
    low.finish(b)
    return out


def _gathered(
    low: Lowering, node: Node, grad: TensorValue, spans: Sequence[Fixed], places: TensorValue, offsets: bool
) -> TensorValue:
    """Each element sums the gradients of the windows that have chosen it; zero is what a window outside has."""
    out = low.result(node)
    kin = opmath(grad.dtype)
    s = Sliding(low, node, out.shape, [span.covers for span in spans])
    sizes = [span.source for span in spans]
    dtype = "int32" if offsets else places.dtype
    values = []
    for number in s.numbers:
        windows = [span.output(a, j) for span, a, j in zip(spans, s.inner, number, strict=True)]
        corners = [span.place(o, 0) if offsets else as_expr(0) for span, o in zip(spans, windows, strict=True)]
        own = _flat([a - corner for a, corner in zip(s.inner, corners, strict=True)], sizes)
        at, exists = [*s.outer, *windows], s.holds(spans, number)
        chosen = s.b.load(places, at, exists).to(dtype).equals(s.b.index(own, dtype))
        values.append(s.b.where(chosen, s.b.load(grad, at, exists).to(kin), 0))
    s.b.store(out, s.total("add", values), s.at)
    low.finish(s.b)
    return out


@rule("lamina.max_pool2d_offsets_backward.default")
def max_pool2d_offsets_backward(
    low: Lowering, node: Node, grad: TensorValue, x: TensorValue, *window: Any
) -> TensorValue:
    return _max_pool_backward(low, node, grad, x, 2, window, offsets=True)


@rule("aten.max_pool2d_with_indices_backward.default")
def max_pool2d_backward(low: Lowering, node: Node, grad: TensorValue, x: TensorValue, *window: Any) -> TensorValue:
    return _max_pool_backward(low, node, grad, x, 2, window)


@rule("aten.max_pool3d_with_indices_backward.default")
def max_pool3d_backward(low: Lowering, node: Node, grad: TensorValue, x: TensorValue, *window: Any) -> TensorValue:
    return _max_pool_backward(low, node, grad, x, 3, window)
