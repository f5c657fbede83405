"""The greatest or least few elements of short rows on a GPU: as many extremes, one after the other. Others are sorted.

The library selects and sorts in kernels made for long rows (H200: 24 us for 2 of 8 in 8192 rows of float32). A row that
a program holds in registers is read once, and the nest fuses with what made it, as a router's softmax.
"""

from __future__ import annotations

import math

from torch.fx import Node

from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import NestBuilder, Scalar, Value
from lamina.lower.context import Lowering
from lamina.lower.positions import dimension, integer
from lamina.lower.rules import Decline, rule
from lamina.lower.sorted_rows import LONGEST
from lamina.lower.sorting import top
from lamina.lower.values import TensorValue

__all__: list[str] = []

_LONGEST, _MOST = 2 * LONGEST, 8
"""Longest rows, and most elements taken of one."""


@rule("aten.topk.default")
def topk(
    low: Lowering, node: Node, x: TensorValue, k: int | Expr, dim: int = -1, largest: bool = True, sorted: bool = True
) -> list[TensorValue | None]:
    """The first ``k`` elements in order, NaN as the greatest; of equal ones those at lower places come first.

    The library gives equal ones in the order that its sorting network leaves them in. Numbers of 16 bits and integers
    are often equal, and are left to it.
    """
    count = integer(k, "a number of elements")
    if x.dtype == "bool":
        raise Decline("eager selects no booleans")
    if not (0 < count <= _MOST and _is_short(low, x, dim)):
        if not sorted:
            raise Decline("the order of elements that nobody asks to be sorted is the library's")
        return top(low, node, x, count, dim, largest)
    along = dimension(dim, x.rank)
    values, places = low.result(node, 0), low.result(node, 1)
    low.plain(x.dtype)
    b = low.nest(node, x.shape)
    row = _Row(b, b.load(x), along, largest)
    for turn in range(count):
        at = [as_expr(turn) if d == along else axis for d, axis in enumerate(b.axes)]
        value, place = row.take()
        b.store(values, value, at)
        b.store(places, place, at)
    low.finish(b)
    return [values, places]


def _is_short(low: Lowering, x: TensorValue, dim: int) -> bool:
    """Whether a program of a GPU holds rows whose elements are seldom equal."""
    if not low.on_gpu(x) or low.numerics != "fast" or not x.rank or x.dtype not in ("float32", "float64"):
        return False
    length = x.shape[dimension(dim, x.rank)]
    return length.is_int and length.const <= _LONGEST


class _Row:
    """A row of a nest, from which elements are taken one after the other."""

    def __init__(self, b: NestBuilder, v: Value, along: int, largest: bool) -> None:
        self.b, self.v, self.along, self.largest = b, v, along, largest
        self.length = b.axis_list[along].extent.const
        self.place = b.index(b.axes[along], "int32")
        self.left: Value | None = None
        self.nan = v.op("isnan")

    def take(self) -> tuple[Value, Value]:
        """The first of those left, and its place."""
        b, v, far = self.b, self.v, self.length
        if self.largest:
            best = self._over("max", self._among(v, -math.inf))
            here = v.equals(best).op("or", self.nan)  # a maximum of those left is NaN where one of them is
            place = self._over("min", self._among(b.where(here, self.place, far), 2 * far))
        else:
            best = self._over("min", self._among(b.where(self.nan, math.inf, v), math.inf))
            # NaN comes last: its places are beyond all others.
            wanted = b.where(v.equals(best), self.place, self.place + far)
            place = self._over("min", self._among(wanted, 2 * far))
            only_nan = place >= far
            best, place = b.where(only_nan, math.nan, best), b.where(only_nan, place - far, place)
        others = self.place != place
        self.left = others if self.left is None else self.left & others
        return best, place

    def _among(self, value: Value, otherwise: Scalar) -> Value:
        return value if self.left is None else self.b.where(self.left, value, otherwise)

    def _over(self, op: str, value: Value) -> Value:
        return self.b.reduce(op, value, [self.along])
