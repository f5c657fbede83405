"""Gradients of linear and cubic resampling: sums of all results that an element is part of."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import NestBuilder, Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.interpolation import cubic_weights, linear_weights, places
from lamina.lower.positions import all_of, inside, shape_of
from lamina.lower.resize_windows import Part, Window, gathered, neighbours_window
from lamina.lower.resizes import Resize, resizes
from lamina.lower.rules import Decline, rule
from lamina.lower.upsample import is_innermost
from lamina.lower.values import TensorValue
from lamina.lower.windows import WRITTEN_OUT

__all__: list[str] = []

_LIBRARY = "each element adds to several others with weights; ATen's kernel is parallel and took 0.76 of the time"


@dataclass(frozen=True, slots=True)
class _Part:
    """A result that an element is part of: its place, its weight and, where some elements have none, which have it."""

    place: Expr
    weight: Value
    inside: Value | None


def _parts(b: NestBuilder, at: Expr, resize: Resize, dtype: str) -> list[_Part]:
    """What the element ``at`` is part of, eager's weights of zero included: zero times infinity is not a number."""
    n, count = resize.source, resize.result // resize.source
    if count == 1:
        return [_Part(at, b.constant(1.0, dtype), None), _Part(at, b.constant(0.0, dtype), None)]
    first, last, half = b.index(at).equals(0), b.index(at).equals(n - 1), count // 2
    found = [_Part(at * count + (k - count), b.constant(0.0, dtype), b.index(at).equals(1)) for k in range(half)]
    for k in range(-half, count + half):
        far = abs((k + 0.5) / count - 0.5)
        weight, inside = b.constant(1 - far, dtype), None
        if k < 0:
            inside = ~first
        elif k >= count:
            inside = ~last
        else:
            weight = (first if k < half else last).op("where", b.constant(1.0, dtype), weight)
        found.append(_Part(at * count + k, weight, inside))
    return found


def _enlarged_backward(
    low: Lowering, node: Node, grad: TensorValue, rank: int, corners: bool, scales: Sequence[float | None]
) -> TensorValue:
    low.plain(grad.dtype)
    shape, kin = shape_of(node), opmath(grad.dtype)
    sizes = resizes(shape[-rank:], grad.shape[-rank:], scales)
    even = all(n.source == n.result or n.enlarges(kin) for n in sizes) and not corners and rank < 3
    few = math.prod(n.result // n.source for n in sizes) <= 4  # 25 results for each element, not ten times ten
    if low.on_gpu(grad):
        return _gathered_neighbours(low, node, grad, sizes, corners)
    if not is_innermost(node) or not DTYPES[grad.dtype].is_float:
        raise Decline(_LIBRARY)
    if not (even and few):
        return _by_lines(low, node, grad, sizes, corners, False)
    out = low.result(node)
    b = low.nest(node, out.shape)
    *rows, columns = (_parts(b, at, n, kin) for at, n in zip(b.axes[-rank:], sizes, strict=True))
    lines = rows[0] if rows else [None]

    def line(column: _Part) -> Value:
        terms = []
        for row in lines:
            masks = [part.inside for part in (row, column) if part is not None and part.inside is not None]
            mask = functools.reduce(operator.and_, masks) if masks else None
            place = [*b.axes[:-rank], *([] if row is None else [row.place]), column.place]
            value = b.load(grad, place, mask, 0.0).to(kin)
            terms.append(value if row is None else value * row.weight)
        return functools.reduce(operator.add, terms) * column.weight

    b.store(out, functools.reduce(operator.add, [line(column) for column in columns]))
    low.finish(b)
    return out


def _gathered_neighbours(
    low: Lowering, node: Node, grad: TensorValue, sizes: Sequence[Resize], corners: bool
) -> TensorValue:
    """On GPUs: the results that each element is a neighbour of, of those around it, with its weight in them.

    Where both neighbours are the last element, eager multiplies by each weight, and one of zero makes an infinity NaN.
    """
    kin = opmath(grad.dtype)
    if all(n.source == n.result for n in sizes):  # eager copies
        out = low.result(node)
        b = low.nest(node, out.shape)
        b.store(out, b.load(grad, b.axes))
        low.finish(b)
        return out
    ends = [any(len(taken) == 1 for taken in places(n, corners, False)) for n in sizes]

    def part(b: NestBuilder, d: int, i: Expr, place: Expr) -> Part:
        at, nothing = b.index(place), b.constant(0.0, kin)
        (left, near), (right, far) = linear_weights(b, place, sizes[d], corners, kin)
        here = b.index(i, left.dtype)
        is_left, is_right = left.equals(here), right.equals(here)
        share = is_left.op("where", near, nothing) + is_right.op("where", far, nothing)
        zero = is_left & is_right & (near.equals(0.0) | far.equals(0.0)) if ends[d] else None
        return Part(place, (is_left | is_right) & (at >= 0) & (at < sizes[d].result), share, zero)

    return gathered(low, node, grad, [neighbours_window(n, corners, False) for n in sizes], part)


def _by_lines(
    low: Lowering, node: Node, grad: TensorValue, sizes: Sequence[Resize], corners: bool, cubic: bool
) -> TensorValue:
    """One dimension after the other, the last one last, so that all the others are sums of whole lines."""
    changed = [k for k, n in enumerate(sizes) if cubic or n.source != n.result]
    parts = {k: _Table.of(low, node, sizes[k], corners, cubic, opmath(grad.dtype)) for k in changed}
    kept = len(changed) < len(sizes)
    for k in changed:
        dim = grad.rank - len(sizes) + k
        shape = [*grad.shape[:dim], as_expr(sizes[k].source), *grad.shape[dim + 1 :]]
        last = k == changed[-1]
        out = low.result(node) if last else _lines(low, node, opmath(grad.dtype), shape)
        parts[k].add_up(low, node, grad, out, dim, kept and last)
        grad = out
    return grad


def _lines(low: Lowering, node: Node, dtype: str, shape: Sequence[Expr]) -> TensorValue:
    """Memory for sums along one dimension, which lie as the results of ``node`` do."""
    value: torch.Tensor = node.meta["val"]
    strides, step = [as_expr(1)] * len(shape), as_expr(1)
    for dim in sorted(range(len(shape)), key=lambda d: (value.stride(d), -d)):
        strides[dim], step = step, step * shape[dim]
    return low.buffer(f"{node.name}_lines", dtype, shape, strides, str(value.device))


@dataclass(frozen=True, slots=True)
class _Table:
    """For each source element of a dimension, the results that it may have been a neighbour of: their places, whether
    it was, with which weight, and whether that is a sum of weights of both signs, or of zero: eager multiplies by each,
    and what it makes of an infinity is not a number.

    Each is a tensor of ``count`` lines, computed when the kernels run, as eager computes places and weights.
    """

    window: Window
    place: TensorValue
    part: TensorValue
    weight: TensorValue
    mixed: TensorValue

    @classmethod
    def of(cls, low: Lowering, node: Node, resize: Resize, corners: bool, cubic: bool, dtype: str) -> _Table:
        window = neighbours_window(resize, corners, cubic)
        count = window.count
        if count * resize.source > 4 * (resize.source + resize.result):
            raise Decline(
                "places end long before the results do, or gather at an edge, and most elements have few results"
            )
        b = low.nest(node, [as_expr(count), as_expr(resize.source)])
        k, at = b.axes
        result = window.place(at, k)
        weights = (cubic_weights if cubic else linear_weights)(b, result, resize, corners, dtype)
        place, own = b.index(result), b.index(at, weights[0][0].dtype)
        inside = (place >= 0) & (place < resize.result)
        taken = [(near.equals(own) & inside, weight) for near, weight in weights]
        weight = functools.reduce(operator.add, (part.op("where", w, 0.0) for part, w in taken))
        part = functools.reduce(operator.or_, (part for part, _ in taken))
        above, below = (
            functools.reduce(operator.or_, (part & w.op(sign, 0.0) for part, w in taken)) for sign in ("ge", "le")
        )
        values = {
            "place": place.op("maximum", 0).op("minimum", resize.result - 1).to("int32"),
            "part": part,
            "weight": weight,
            "mixed": above & below,
        }
        made = {}
        for name, value in values.items():
            lines = [as_expr(count), as_expr(resize.source)]
            made[name] = low.buffer(f"{node.name}_{name}", value.dtype, lines, device=str(node.meta["val"].device))
            b.store(made[name], value)
        low.finish(b)
        return cls(window, **made)

    def add_up(self, low: Lowering, node: Node, grad: TensorValue, out: TensorValue, dim: int, kept: bool) -> None:
        """``out`` along ``dim`` is the sum of what its elements are part of; ``kept``: plus zero times that."""
        kin, count = opmath(grad.dtype), self.window.count
        if low.on_gpu(grad) and count <= WRITTEN_OUT:
            self._add_up_written_out(low, node, grad, out, dim)
            return
        b = low.nest(node, [*out.shape, as_expr(count)])
        *axes, k = b.axes
        place = b.load(self.place, [k, axes[dim]]).to("int64")
        part, weight, mixed = (b.load(t, [k, axes[dim]]) for t in (self.part, self.weight, self.mixed))
        at = [*axes[:dim], b.loaded(place, grad.shape[dim]), *axes[dim + 1 :]]
        value = b.load(grad, at).to(kin)
        term = part.op("where", value * weight, 0.0) + mixed.op("where", value * 0.0, 0.0)
        total = b.reduce("sum", term, [out.rank])
        b.store(out, total + total * 0.0 if kept else total, axes)
        low.finish(b)

    def _add_up_written_out(self, low: Lowering, node: Node, grad: TensorValue, out: TensorValue, dim: int) -> None:
        """The same in a kernel for GPUs without a loop, in which places follow from the element's own."""
        kin = opmath(grad.dtype)
        b = low.nest(node, out.shape)
        own = b.axes[dim]
        total: Value | None = None
        for k in range(self.window.count):
            part, weight, mixed = (b.load(t, [as_expr(k), own]) for t in (self.part, self.weight, self.mixed))
            place = self.window.place(own, k)
            # Whoever makes up the table's values reads inside of the results, too.
            reached = all_of([part, inside(b, place, grad.shape[dim])])
            value = b.load(grad, [*b.axes[:dim], place, *b.axes[dim + 1 :]], reached, 0.0).to(kin)
            term = value * weight + mixed.op("where", value * 0.0, 0.0)
            total = term + 0.0 if total is None else total + term
        assert total is not None, "a window has a place at least"
        b.store(out, total)
        low.finish(b)


def _register(rank: int, name: str) -> None:
    @rule(f"aten.{name}_backward.default")
    def backward(
        low: Lowering, node: Node, grad: TensorValue, size: Any, source: Any, corners: bool, *scales: float | None
    ) -> TensorValue:
        return _enlarged_backward(low, node, grad, rank, corners, scales)


@rule("aten.upsample_bicubic2d_backward.default")
def _cubic_backward(
    low: Lowering, node: Node, grad: TensorValue, size: Any, source: Any, corners: bool, *scales: float | None
) -> TensorValue:
    low.plain(grad.dtype)
    if not DTYPES[grad.dtype].is_float or not (low.on_gpu(grad) or is_innermost(node)):
        raise Decline(_LIBRARY)
    sizes = resizes(shape_of(node)[-2:], grad.shape[-2:], scales)
    if all(n.source == n.result for n in sizes):
        raise Decline("eager copies")
    return _by_lines(low, node, grad, sizes, corners, True)


for _rank, _name in ((1, "upsample_linear1d"), (2, "upsample_bilinear2d"), (3, "upsample_trilinear3d")):
    _register(_rank, _name)
