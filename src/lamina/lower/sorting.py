"""Sorting along short dimensions: one point of a nest is a row, whose elements are compared in a fixed order.

The library calls a sort for each row, copies rows that do not lie in memory one after the other, and is called between
kernels. Here rows are the lanes of vectors, or the threads of a GPU, and the nest fuses with its neighbours.
"""

from __future__ import annotations

from torch.fx import Node

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import NestBuilder
from lamina.lower.context import Lowering
from lamina.lower.library import is_read
from lamina.lower.positions import dimension
from lamina.lower.rules import Decline, rule
from lamina.lower.sorted_rows import LONGEST, SortedRow
from lamina.lower.values import TensorValue

__all__ = ["Rows"]

_STABLE = 16
"""Rows of as many elements are sorted stably by eager on a CPU even where nobody asks for it."""


class Rows:
    """The rows of a tensor along one dimension, each a point of a nest. Declines rows of an unknown or great length."""

    def __init__(self, low: Lowering, node: Node, x: TensorValue, dim: int) -> None:
        self.low, self.x, self.along = low, x, dimension(dim, x.rank)
        length = x.shape[self.along] if x.rank else as_expr(1)
        if not length.is_int:
            raise Decline("a row that is sorted has a length known only at run time")
        if not 0 < length.const <= LONGEST:
            raise Decline(f"rows of more than {LONGEST} elements are sorted by the library")
        low.plain(x.dtype)
        self.length = int(length.const)
        if DTYPES[x.dtype].kind == "uint" and x.dtype != "uint8" and low.on_gpu(x):
            raise Decline(f"rows of {x.dtype} are sorted by the library on a GPU")
        self.b: NestBuilder = low.nest(node, [n for d, n in enumerate(x.shape) if d != self.along])

    def at(self, place: int) -> list[Expr]:
        """The position of an element of the point's row."""
        axes = list(self.b.axes)
        return [*axes[: self.along], as_expr(place), *axes[self.along :]] if self.x.rank else []

    def sorted(self, descending: bool, places: bool, stable: bool) -> SortedRow:
        """The row in order. Declines where eager has equal elements in an order of its own that would be missed."""
        ties = stable or (self.length <= _STABLE and not self.low.on_gpu(self.x))
        exact = not DTYPES[self.x.dtype].is_float and not places  # equal integers are the same
        if not ties and not exact and self.low.numerics == "eager":
            raise Decline("equal elements are in the order in which the library's sort leaves them")
        if not ties and places and self.x.dtype not in ("float32", "float64"):
            raise Decline("the places of equal elements, of which there are many, are in the order of the library's sort")
        row = [self.b.load(self.x, self.at(k)) for k in range(self.length)]
        return SortedRow(self.b, row, descending, places, ties)


@rule("aten.sort.default")
def sort(low: Lowering, node: Node, x: TensorValue, dim: int = -1, descending: bool = False) -> list[TensorValue | None]:
    """All elements in order, NaN as the greatest, and where they were."""
    return _sort(low, node, x, dim, descending, False)


@rule("aten.sort.stable")
def sort_stable(
    low: Lowering, node: Node, x: TensorValue, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> list[TensorValue | None]:
    """As ``sort``; with ``stable`` equal elements stay in order."""
    return _sort(low, node, x, dim, descending, bool(stable))


def _sort(
    low: Lowering, node: Node, x: TensorValue, dim: int, descending: bool, stable: bool
) -> list[TensorValue | None]:
    values, places = (low.result(node, k) if is_read(node, k) else None for k in range(2))
    rows = Rows(low, node, x, dim)
    row = rows.sorted(descending, places is not None, stable)
    for rank in range(rows.length):
        if values is not None:
            rows.b.store(values, row.value(rank), rows.at(rank))
        if places is not None:
            rows.b.store(places, row.place(rank), rows.at(rank))
    low.finish(rows.b)
    return [values, places]
