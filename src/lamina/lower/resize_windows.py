"""Gradients of resampling as gathers: an element of the source sums the results around it that it is part of.

ATen's kernels add to each source element from wherever it was taken, or go through all results one after the other
(H200, nearest elements of 256 x 16 x 35 x 35 for 52 x 70 in bfloat16: 5 ms). What an element is part of follows
from eager's arithmetic, in the kernel; at which places they can be is found here, where all sizes are known.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from torch.fx import Node

from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import NestBuilder, Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.interpolation import places
from lamina.lower.resizes import Resize
from lamina.lower.values import TensorValue
from lamina.lower.windows import WRITTEN_OUT

__all__ = ["Part", "Window", "gathered", "nearest_place", "nearest_window", "neighbours_window"]


@dataclass(frozen=True, slots=True)
class Part:
    """A result that an element may be part of: its place, whether it is, and the element's weight, if not one.

    ``zero``: whether that is the sum of two weights of which one is zero.
    """

    place: Expr
    inside: Value
    weight: Value | None = None
    zero: Value | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """The places of the results that source element ``i`` can be part of: ``count`` from ``(i * p + r) // q`` on."""

    p: int
    r: int
    q: int
    count: int

    def place(self, at: Expr, k: Expr | int) -> Expr:
        """The place number ``k`` of element ``at``; it may be beyond the results on either side."""
        return (at * self.p + self.r) // self.q + k


def nearest_place(b: NestBuilder, at: Value, resize: Resize, exact: bool) -> Value:
    """The source element of a result place, as eager computes it."""
    v, ratio = at.to("float32"), resize.ratio("float32")
    place = ((v + 0.5) * ratio if exact else v * ratio).op("floor").to("int64")
    return place.op("minimum", resize.source - 1)


def nearest_window(resize: Resize, exact: bool) -> Window:
    """Where the results of an element can be that is the nearest to them."""
    return _window(((place,) for place in resize.nearest(exact)), resize.result, resize.source)


def neighbours_window(resize: Resize, corners: bool, cubic: bool) -> Window:
    """Where the results of an element can be that is a neighbour of theirs, those with a weight of zero included."""
    source, result = resize.source, resize.result
    slope = (result - 1, source - 1) if corners and min(source, result) > 1 else (result, source)
    return _window(places(resize, corners, cubic), *slope)


def _window(taken: Iterable[Iterable[int]], p: int, q: int) -> Window:
    """The smallest window, of places that go on by ``p / q`` for each element, with all results of each element.

    ``taken`` has the source elements of each result.
    """
    first, last = dict[int, int](), dict[int, int]()
    for at, found in enumerate(taken):
        for place in found:
            first.setdefault(place, at)
            last[place] = at
    r = min(at * q + q - 1 - i * p for i, at in first.items())
    return Window(p, r, q, 1 + max(at - (i * p + r) // q for i, at in last.items()))


def gathered(
    low: Lowering,
    node: Node,
    grad: TensorValue,
    windows: Sequence[Window],
    part: Callable[[NestBuilder, int, Expr, Expr], Part],
) -> TensorValue:
    """The sums, in eager's precision, of the results that each source element is part of, of one window a dimension.

    ``part`` says of a dimension, an element's place and a result's place how the one is part of the other.
    """
    out, rank = low.result(node), len(windows)
    counts = [w.count for w in windows]
    loops = math.prod(counts) > WRITTEN_OUT
    b = low.nest(node, [*out.shape, *(as_expr(n) for n in counts)] if loops else out.shape)
    at, within = b.axes[: out.rank], b.axes[out.rank :]
    along = []
    for d, window in enumerate(windows):
        i = at[out.rank - rank + d]
        steps: Sequence[Expr | int] = [within[d]] if loops else range(window.count)
        along.append([part(b, d, i, window.place(i, k)) for k in steps])
    total: Value | float = 0.0  # as eager's sums begin, so that negative zeros are positive ones
    for corner in product(*along):
        mask = functools.reduce(operator.and_, (p.inside for p in corner))
        value = b.load(grad, [*at[:-rank], *(p.place for p in corner)], mask, 0.0).to(opmath(grad.dtype))
        term = functools.reduce(operator.mul, (p.weight for p in corner if p.weight is not None), value)
        if zeros := [p.zero for p in corner if p.zero is not None]:
            nothing = b.constant(0.0, value.dtype)
            term = term + functools.reduce(operator.or_, zeros).op("where", value * 0.0, nothing)
        total = term + total if not loops else b.reduce("sum", term, range(out.rank, out.rank + rank))
    assert isinstance(total, Value), "a window has a place at least"
    b.store(out, total.to(out.dtype), at)
    low.finish(b)
    return out
