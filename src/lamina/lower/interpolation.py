"""Neighbours and weights of linear and cubic resampling.

Source places are computed in floating point as eager does, because rounding decides between neighbours.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from itertools import product

import torch

from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import NestBuilder, Value
from lamina.lower.resizes import Resize, rounded
from lamina.lower.values import TensorValue

__all__ = ["Share", "cubic_shares", "cubic_weights", "linear_shares", "linear_weights", "places", "weighted_sum"]

Share = tuple[Expr, Value | None]
"""A source place and the weight it has (``None``: all of it)."""


def linear_shares(b: NestBuilder, at: Expr, resize: Resize, corners: bool, dtype: str, gpu: bool) -> list[Share]:
    """The two neighbours of a result place and their weights.

    Where a dimension keeps its size, eager on CPUs adds the element times zero, which is not a number for infinities.
    On GPUs such a dimension is as any other: a given factor may still put places between elements.
    """
    if resize.source == resize.result and not gpu:
        return [(at, None), (at, b.constant(0.0, dtype))]
    size = as_expr(resize.source)
    return [(b.loaded(place, size), weight) for place, weight in linear_weights(b, at, resize, corners, dtype)]


def _places_dtype(resize: Resize) -> str:
    """The integers that places are computed in: a GPU converts those of 64 bits at a quarter of the speed."""
    return "int32" if max(resize.source, resize.result) < 1 << 30 else "int64"


def linear_weights(b: NestBuilder, at: Expr, resize: Resize, corners: bool, dtype: str) -> list[tuple[Value, Value]]:
    """The places of the two neighbours, integers within the source, and their weights."""
    source, result, kin = resize.source, resize.result, _places_dtype(resize)
    v = b.index(at, kin).to(dtype)
    if corners:
        real = v * (rounded((source - 1) / (result - 1), dtype) if result > 1 else 0.0)
    else:
        real = ((v + 0.5) * resize.ratio(dtype) - 0.5).op("maximum", 0.0)
    left = real.to(kin).op("minimum", source - 1)
    weight = (real - left.to(dtype)).op("maximum", 0.0).op("minimum", 1.0)
    right = (left + 1).op("minimum", source - 1)
    return [(left, 1.0 - weight), (right, weight)]


def cubic_shares(b: NestBuilder, at: Expr, resize: Resize, corners: bool, dtype: str) -> list[tuple[Expr, Value]]:
    """The four neighbours of a result place, those beyond an edge being the edge, and their weights."""
    size = as_expr(resize.source)
    return [(b.loaded(place, size), weight) for place, weight in cubic_weights(b, at, resize, corners, dtype)]


def cubic_weights(b: NestBuilder, at: Expr, resize: Resize, corners: bool, dtype: str) -> list[tuple[Value, Value]]:
    """The places of the four neighbours, integers within the source, and their weights.

    Cubic convolution (Keys, 1981) with eager's ``a``.
    """
    source, result, kin, a = resize.source, resize.result, _places_dtype(resize), -0.75
    v = b.index(at, kin).to(dtype)
    if corners:
        real = v * (rounded((source - 1) / (result - 1), dtype) if result > 1 else 0.0)
    else:
        real = (v + 0.5) * resize.ratio(dtype) - 0.5
    whole = real.op("floor")
    left, t = whole.to(kin), real - whole

    def near(x: Value) -> Value:
        return (x * (a + 2.0) - (a + 3.0)) * x * x + 1.0

    def far(x: Value) -> Value:
        return ((x * a - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a

    weights = (far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t))
    found = ((left + k).op("maximum", 0).op("minimum", source - 1) for k in (-1, 0, 1, 2))
    return list(zip(found, weights, strict=True))


def places(resize: Resize, corners: bool, cubic: bool) -> list[set[int]]:
    """The source places of each result place that have a weight, also those that rounding might choose."""
    source, result = resize.source, resize.result
    near = 8 * (source + 1) * torch.finfo(torch.float32).eps
    found: list[set[int]] = []
    for at in range(result):
        if corners:
            real = at * (source - 1) / (result - 1) if result > 1 else 0.0
        else:
            real = (at + 0.5) * resize.ratio("float64") - 0.5
            real = real if cubic else max(real, 0.0)
        lefts = {math.floor(real - near), math.floor(real + near)}
        around = range(-1, 3) if cubic else range(2)
        found.append({min(max(left + k, 0), source - 1) for left in lefts for k in around})
    return found


def weighted_sum(b: NestBuilder, x: TensorValue, first: int, shares: Sequence[Sequence[Share]], dtype: str) -> Value:
    """The sum of ``x`` at all source places of a result with their weights, along dimensions from ``first`` on."""
    terms = []
    for corner in product(*shares):
        place = [*b.axes[:first], *(p for p, _ in corner)]
        value = b.load(x, [*place, *b.axes[len(place) :]]).to(dtype)
        for _, weight in corner:
            value = value if weight is None else value * weight
        terms.append(value)
    return functools.reduce(operator.add, terms)
