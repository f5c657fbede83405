"""Resampling by the nearest element, with its gradient, by linear or by cubic interpolation.

Source places are computed in floating point exactly as eager does, because rounding decides between neighbours.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch.fx import Node

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import NestBuilder, Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.interpolation import Share, cubic_shares, linear_shares, weighted_sum
from lamina.lower.positions import shape_of
from lamina.lower.resize_windows import Part, gathered, nearest_place, nearest_window
from lamina.lower.resizes import Resize, resizes
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue

__all__ = ["is_innermost"]


_PERIOD = 512
"""Result places at most after which source places go on in the same way for a table to be made of them."""
_TAKEN = 9
"""Results that an element's gradient is the sum of at most."""

_Around = Callable[[NestBuilder, Expr, Resize], Sequence[Share]]
"""What gives a result place's source places."""


def _nearest(b: NestBuilder, at: Expr, resize: Resize, exact: bool) -> Expr:
    repeats, step = resize.repeats(exact), resize.step(exact)
    if repeats is not None:
        return at // repeats
    if step is not None:
        return at * step
    fraction = resize.fraction(exact)
    if fraction is not None:
        p, r, q = fraction
        return (at * p + r) // q
    return b.loaded(nearest_place(b, b.index(at), resize, exact), as_expr(resize.source))


def _shares(
    b: NestBuilder, sizes: Sequence[Resize], corners: bool | None, exact: bool, dtype: str, gpu: bool
) -> list[list[Share]]:
    """For each dimension its source places with weights; ``corners`` of ``None`` asks for the nearest."""
    along = zip(b.axes[-len(sizes) :], sizes, strict=True)
    if corners is None:
        return [[(_nearest(b, at, size, exact), None)] for at, size in along]
    if gpu and all(size.source == size.result for size in sizes):
        return [[(at, None)] for at, _ in along]  # eager copies
    return [linear_shares(b, at, size, corners, dtype, gpu) for at, size in along]


def is_innermost(node: Node) -> bool:
    """Whether results that are next to each other in memory differ in the last dimension's place."""
    value: torch.Tensor = node.meta["val"]
    return value.stride(-1) == 1 or value.shape[1] == 1


def _agreed(sizes: Sequence[Resize], exact: bool) -> None:
    """Decline what eager's kernels, of which layout, rank and direction choose one, compute differently."""
    if any(size.disagrees(exact) for size in sizes):
        raise Decline("the factor gives other places than the sizes, and eager's kernels differ in which they take")


def _is_even(resize: Resize, corners: bool | None, exact: bool) -> bool:
    """Whether places go on in even steps, or in the same way after every few."""
    if corners is not None:
        return resize.source == resize.result
    if resize.repeats(exact) is not None or resize.step(exact) is not None:
        return True
    fraction = resize.fraction(exact)
    return fraction is not None and fraction[2] <= _PERIOD


def _resampled(
    low: Lowering,
    node: Node,
    x: TensorValue,
    rank: int,
    scales: Sequence[float | None],
    corners: bool | None,
    exact: bool = False,
) -> TensorValue:
    out = low.result(node)
    low.plain(x.dtype)
    kin = opmath(x.dtype) if corners is not None else x.dtype
    sizes = resizes(x.shape[-rank:], out.shape[-rank:], scales)
    if corners is None:
        _agreed(sizes, exact)
    if not low.on_gpu(x) and is_innermost(node) and not _is_even(sizes[-1], corners, exact):
        if corners is False and DTYPES[x.dtype].is_float and sizes[-1].enlarges(kin):
            return _enlarged(low, node, x, out, sizes)
        if corners is not None and DTYPES[x.dtype].is_float:
            return _in_lines(low, node, x, out, sizes, partial(linear_shares, corners=corners, dtype=kin, gpu=False))
        raise Decline(
            "neighbours in memory come from places in no even steps; ATen took a third to a tenth of the time"
        )
    b = low.nest(node, out.shape)
    b.store(out, weighted_sum(b, x, x.rank - rank, _shares(b, sizes, corners, exact, kin, low.on_gpu(x)), kin))
    low.finish(b)
    return out


def _enlarged(low: Lowering, node: Node, x: TensorValue, out: TensorValue, sizes: Sequence[Resize]) -> TensorValue:
    """Twice or four times as long rows: of three neighbours in each, what all results of the middle one are made of.

    The first result's weights are eager's, 1 and 0, and the last one's neighbour is the last element itself.
    """
    kin, count, rank = opmath(x.dtype), sizes[-1].result // sizes[-1].source, len(sizes)
    b = low.nest(node, [*out.shape[:-1], x.shape[-1]])
    *above, at = b.axes
    batch, lines = above[: len(above) - rank + 1], above[len(above) - rank + 1 :]
    rows = [linear_shares(b, a, size, False, kin, False) for a, size in zip(lines, sizes[:-1], strict=True)]
    inside = {-1: b.index(at).op("ge", 1), 1: b.index(at).op("lt", sizes[-1].source - 1)}

    def line(step: int) -> Value:
        terms = []
        for corner in product(*rows):
            place = [*batch, *(row for row, _ in corner), at + step]
            value = b.load(x, place, inside.get(step), 0.0).to(kin)
            for _, weight in corner:
                value = value if weight is None else value * weight
            terms.append(value)
        return functools.reduce(operator.add, terms)

    left, here, right = (line(step) for step in (-1, 0, 1))
    for j in range(count):
        far = abs((j + 0.5) / count - 0.5)
        if 2 * j < count:
            value = inside[-1].op("where", left * far + here * (1 - far), here + right * 0.0)
        else:
            value = inside[1].op("where", here * (1 - far) + right * far, here * (1 - far) + here * far)
        b.store(out, value, [*above, at * count + j])
    low.finish(b)
    return out


def _in_lines(
    low: Lowering, node: Node, x: TensorValue, out: TensorValue, sizes: Sequence[Resize], around: _Around
) -> TensorValue:
    """Sums of neighbours along all dimensions but the last, whole lines of them, then along lines, by table.

    ``around`` gives a result place's neighbours and their weights. Only the second step takes elements one by one: of
    lines that were just made, and of each two or four instead of four or sixteen.
    """
    first, kin = x.rank - len(sizes), opmath(x.dtype)
    if len(sizes) > 1:
        b = low.nest(node, [*out.shape[:-1], x.shape[-1]])
        lines = low.buffer(f"{node.name}_lines", kin, [*out.shape[:-1], x.shape[-1]])
        shares = [around(b, at, size) for at, size in zip(b.axes[first:-1], sizes[:-1], strict=True)]
        b.store(lines, weighted_sum(b, x, first, shares, kin))
        low.finish(b)
        first, x, sizes = out.rank - 1, lines, sizes[-1:]
    b = low.nest(node, out.shape)
    shares = [around(b, at, size) for at, size in zip(b.axes[first:], sizes, strict=True)]
    b.store(out, weighted_sum(b, x, first, shares, kin))
    low.finish(b)
    return out


def _cubic_resampled(
    low: Lowering, node: Node, x: TensorValue, corners: bool, scales: Sequence[float | None]
) -> TensorValue:
    """Sums of four elements of each of four rows, the rows' sums summed as they are."""
    out = low.result(node)
    low.plain(x.dtype)
    on_cpu = not low.on_gpu(x)
    if not DTYPES[x.dtype].is_float or (on_cpu and not is_innermost(node)):
        raise Decline("sixteen weighted elements for each result; ATen's kernel for CPUs is vectorised")
    kin = opmath(x.dtype)
    sizes = resizes(x.shape[-2:], out.shape[-2:], scales)
    if on_cpu and any(n.source != n.result for n in sizes):
        return _in_lines(low, node, x, out, sizes, partial(cubic_shares, corners=corners, dtype=kin))
    b = low.nest(node, out.shape)
    if all(n.source == n.result for n in sizes):
        b.store(out, b.load(x, b.axes))
    else:
        rows, columns = (cubic_shares(b, at, n, corners, kin) for at, n in zip(b.axes[-2:], sizes, strict=True))
        lines = [
            (_weighted([(b.load(x, [*b.axes[:-2], row, column]).to(kin), w) for column, w in columns]), weight)
            for row, weight in rows
        ]
        b.store(out, _weighted(lines))
    low.finish(b)
    return out


def _weighted(terms: Sequence[tuple[Value, Value]]) -> Value:
    """The sum of values with weights, from the first on."""
    total, *others = (value * weight for value, weight in terms)
    for term in others:
        total = total + term
    return total


def _nearest_backward(
    low: Lowering, node: Node, grad: TensorValue, rank: int, scales: Sequence[float | None], exact: bool
) -> TensorValue:
    """Each source element sums the gradients of the results it was repeated in."""
    low.plain(grad.dtype)
    shape = shape_of(node)
    sizes = resizes(shape[-rank:], grad.shape[-rank:], scales)
    _agreed(sizes, exact)
    if _repeats(sizes, exact):
        return _summed_blocks(low, node, low.result(node), grad, [n.result // n.source for n in sizes])
    taken = [n.taken(exact) for n in sizes]
    counts = [n for n in taken if n is not None]
    if low.on_gpu(grad):
        return _gathered_places(low, node, grad, sizes, exact)
    if len(counts) < rank or math.prod(counts) > _TAKEN:
        raise Decline("source elements were taken different numbers of times; ATen took a third of a scatter's time")
    return _summed_places(low, node, low.result(node), grad, sizes, counts, exact)


def _repeats(sizes: Sequence[Resize], exact: bool) -> bool:
    """Whether every source element is repeated the same number of times."""
    return all(n.repeats(exact) is not None for n in sizes)


def _summed_blocks(
    low: Lowering, node: Node, out: TensorValue, grad: TensorValue, counts: Sequence[int]
) -> TensorValue:
    rank = len(counts)
    b = low.nest(node, [*out.shape, *(as_expr(n) for n in counts)])
    at, within = b.axes[: out.rank], b.axes[out.rank :]
    place = [a * n + j for a, n, j in zip(at[-rank:], counts, within, strict=True)]
    value = b.load(grad, [*at[:-rank], *place]).to(opmath(grad.dtype))
    b.store(out, b.reduce("sum", value, list(range(out.rank, out.rank + rank))), at)
    low.finish(b)
    return out


def _gathered_places(low: Lowering, node: Node, grad: TensorValue, sizes: Sequence[Resize], exact: bool) -> TensorValue:
    """The gradients of the results that each source element was taken for, found among those around it."""

    def part(b: NestBuilder, d: int, i: Expr, place: Expr) -> Part:
        size, at = sizes[d], b.index(place)
        fraction = size.fraction(exact)
        if fraction is not None:
            p, r, q = fraction
            source = b.index((place * p + r) // q)
        else:
            source = nearest_place(b, at, size, exact)
        return Part(place, source.equals(b.index(i)) & (at >= 0) & (at < size.result))

    return gathered(low, node, grad, [nearest_window(n, exact) for n in sizes], part)


def _summed_places(
    low: Lowering,
    node: Node,
    out: TensorValue,
    grad: TensorValue,
    sizes: Sequence[Resize],
    counts: Sequence[int],
    exact: bool,
) -> TensorValue:
    """The gradients of the results that each source element was taken for, which lie side by side."""
    b, rank = low.nest(node, out.shape), len(sizes)
    along: list[list[tuple[Expr, Value]]] = []
    for at, size, count in zip(b.axes[-rank:], sizes, counts, strict=True):
        p, r, q = size.fraction(exact) or (1, 0, 1)
        first, end = ((i * q - r + p - 1) // p for i in (as_expr(at), as_expr(at) + 1))
        last = b.index(end).op("minimum", size.result)
        along.append([(first + k, b.index(first + k).op("lt", last)) for k in range(count)])
    total: Value | float = 0.0  # as eager's sums begin, so that negative zeros are positive ones
    for corner in product(*along):
        mask = corner[0][1]
        for _, inside in corner[1:]:
            mask = mask.op("and", inside)
        value = b.load(grad, [*b.axes[:-rank], *(place for place, _ in corner)], mask, 0.0).to(opmath(grad.dtype))
        total = value + total
    assert isinstance(total, Value), "a source place has a result at least"
    b.store(out, total.to(out.dtype))
    low.finish(b)
    return out


def _register_nearest(rank: int, name: str, exact: bool) -> None:
    @rule(f"aten.{name}{rank}d.default")
    def nearest(low: Lowering, node: Node, x: TensorValue, size: Any, *scales: float | None) -> TensorValue:
        return _resampled(low, node, x, rank, scales, None, exact)

    @rule(f"aten.{name}{rank}d_backward.default")
    def nearest_backward(
        low: Lowering, node: Node, grad: TensorValue, size: Any, source: Any, *scales: float | None
    ) -> TensorValue:
        return _nearest_backward(low, node, grad, rank, scales, exact)


def _register_linear(rank: int, name: str) -> None:
    @rule(f"aten.{name}.default")
    def linear(
        low: Lowering, node: Node, x: TensorValue, size: Any, corners: bool, *scales: float | None
    ) -> TensorValue:
        return _resampled(low, node, x, rank, scales, corners)


@rule("aten.upsample_bicubic2d.default")
def _bicubic(low: Lowering, node: Node, x: TensorValue, size: Any, corners: bool, *scales: float | None) -> TensorValue:
    return _cubic_resampled(low, node, x, corners, scales)


for _rank in (1, 2, 3):
    _register_nearest(_rank, "upsample_nearest", False)
    _register_nearest(_rank, "_upsample_nearest_exact", True)
for _rank, _name in ((1, "upsample_linear1d"), (2, "upsample_bilinear2d"), (3, "upsample_trilinear3d")):
    _register_linear(_rank, _name)
