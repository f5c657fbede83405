"""Gradients of linear resampling to rows twice or four times as long: sums of all results that an element is in."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Expr
from lamina.lower.builder import NestBuilder, Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.positions import shape_of
from lamina.lower.resizes import Resize, resizes
from lamina.lower.rules import Decline, rule
from lamina.lower.upsample import is_innermost
from lamina.lower.values import TensorValue

__all__: list[str] = []


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
    even = all(n.source == n.result or n.enlarges(kin) for n in sizes) and not corners
    few = math.prod(n.result // n.source for n in sizes) <= 4  # 25 results for each element, not ten times ten
    if low.on_gpu(grad) or not (even and is_innermost(node) and DTYPES[grad.dtype].is_float and few):
        raise Decline(
            "each element adds to several others with weights; ATen's kernel is parallel and took 0.76 of the time"
        )
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


def _register(rank: int, name: str) -> None:
    @rule(f"aten.{name}_backward.default")
    def backward(
        low: Lowering, node: Node, grad: TensorValue, size: Any, source: Any, corners: bool, *scales: float | None
    ) -> TensorValue:
        return _enlarged_backward(low, node, grad, rank, corners, scales)


for _rank, _name in ((1, "upsample_linear1d"), (2, "upsample_bilinear2d")):
    _register(_rank, _name)
