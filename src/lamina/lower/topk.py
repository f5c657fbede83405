"""The greatest or least few elements of short rows on a GPU: as many extremes, one after the other.

The library selects and sorts in kernels made for long rows (H200: 24 us for 2 of 8 in 8192 rows of float32). A row that
a program holds in registers is read once, and the nest fuses with what made it, as a router's softmax.
"""

from __future__ import annotations

import math

from torch.fx import Node

from lamina.ir.index import as_expr
from lamina.lower.builder import NestBuilder, Scalar, Value
from lamina.lower.context import Lowering
from lamina.lower.positions import dimension
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue

__all__: list[str] = []

_REASON = "selection is not a loop over independent elements; few of a short row are, on a GPU"
_LONGEST, _MOST = 64, 8
"""Longest rows, and most elements taken of one."""


@rule("aten.topk.default")
def topk(
    low: Lowering, node: Node, x: TensorValue, k: object, dim: int = -1, largest: bool = True, sorted: bool = True
) -> list[TensorValue]:
    """The first ``k`` elements in order, NaN as the greatest; of equal ones those at lower places come first.

    The library gives equal ones in the order that its sorting network leaves them in. Numbers of 16 bits and integers
    are often equal, and are left to it.
    """
    here = low.buffers[x.buffer].device != "cpu" and low.numerics == "fast"
    if not here or type(k) is not int or not 0 < k <= _MOST or not x.rank:
        raise Decline(_REASON)
    along = dimension(dim, x.rank)
    length = x.shape[along]
    if not length.is_int or length.const > _LONGEST or x.dtype not in ("float32", "float64"):
        raise Decline(_REASON)
    values, places = low.result(node, 0), low.result(node, 1)
    low.plain(x.dtype)
    b = low.nest(node, x.shape)
    row = _Row(b, b.load(x), along, largest)
    for turn in range(k):
        at = [as_expr(turn) if d == along else axis for d, axis in enumerate(b.axes)]
        value, place = row.take()
        b.store(values, value, at)
        b.store(places, place, at)
    low.finish(b)
    return [values, places]


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
