"""Sorting along short dimensions: one point of a nest is a row, whose elements are compared in a fixed order.

The library calls a sort for each row, copies rows that do not lie in memory one after the other, and is called between
kernels. Here rows are the lanes of vectors, or the threads of a GPU, and the nest fuses with its neighbours.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

from torch.fx import Node

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import NestBuilder, Value
from lamina.lower.context import Lowering
from lamina.lower.library import is_read
from lamina.lower.positions import dimension, integer
from lamina.lower.rules import Decline, rule
from lamina.lower.sorted_rows import LONGEST, MOST, Key, Keys, SortedRow
from lamina.lower.values import TensorValue

__all__ = ["top"]


_NETWORK = 32
"""Elements of the longest rows that a GPU's library sorts by exchanges, which leave equal elements in another order.
Longer ones it merges or sorts by digits, stably though nobody asks for it (H200, bfloat16 and int16 of five values,
rows of 33 to 9000: every place is a stable sort's; of 9 and 32 not).
"""


class _Rows:
    """The rows of a tensor along one dimension, each a point of a nest. Declines rows of an unknown or great length."""

    def __init__(self, low: Lowering, node: Node, x: TensorValue, dim: int) -> None:
        self.low, self.x, self.along = low, x, dimension(dim, x.rank)
        length = x.shape[self.along] if x.rank else as_expr(1)
        if not length.is_int:
            raise Decline("a row that is sorted has a length known only at run time")
        if not 0 < length.const <= LONGEST:
            raise Decline(f"rows of more than {LONGEST} elements are sorted by the library")
        _check_dtype(low, x)
        self.length = int(length.const)
        self.b: NestBuilder = low.nest(node, [n for d, n in enumerate(x.shape) if d != self.along])

    def at(self, place: int) -> list[Expr]:
        """The position of an element of the point's row."""
        axes = list(self.b.axes)
        return [*axes[: self.along], as_expr(place), *axes[self.along :]] if self.x.rank else []

    def _most(self, places: bool) -> int:
        """Elements of a row at most. A GPU's threads read neighbours in memory one after the other.

        H200, 2^23 numbers of float32, kernel and library in ms: rows of 32 side by side 0.04 and 0.39, of neighbours
        0.21 and 0.29, with their places 1.37 and 0.30; rows of 16 neighbours 0.14 and 0.44, with places 0.34 and 0.43.
        """
        return _longest_of_threads(places) if self.low.on_gpu(self.x) else LONGEST

    @property
    def short(self) -> bool:
        """Whether eager sorts such rows stably though nobody asks for it: C++'s sort inserts up to 16 elements."""
        return self.length <= 16 and not self.low.on_gpu(self.x)

    def sorted(self, descending: bool, places: bool, ties: bool) -> SortedRow:
        """The row in order. ``ties``: eager has equal elements in the order in which they were.

        Declines where eager has them in an order of its own that would be missed.
        """
        if self.length > self._most(places):
            raise Decline(f"rows of more than {self._most(places)} such elements are sorted by the library on a GPU")
        _check(self.low, self.x, places, ties)
        row = [self.b.load(self.x, self.at(k)) for k in range(self.length)]
        return SortedRow(self.b, row, descending, places, ties)


def _check_dtype(low: Lowering, x: TensorValue) -> None:
    low.plain(x.dtype)
    if DTYPES[x.dtype].kind == "uint" and x.dtype != "uint8" and low.on_gpu(x):
        raise Decline(f"rows of {x.dtype} are sorted by the library on a GPU")


def _longest_of_threads(places: bool) -> int:
    """Elements at most of a row that a thread of a GPU sorts."""
    return LONGEST // 2 if places else LONGEST


def _check(low: Lowering, x: TensorValue, places: bool, ties: bool) -> None:
    """Declines what eager sorts in an order of its own that would be missed. ``ties``: equal elements stay in order."""
    exact = not DTYPES[x.dtype].is_float and not places  # equal integers are the same
    if not ties and not exact and low.numerics == "eager":
        raise Decline("equal elements are in the order in which the library's sort leaves them")
    if not ties and places and x.dtype not in ("float32", "float64"):
        raise Decline("the places of equal elements, of which there are many, are as the library's sort leaves them")


@rule("aten.sort.default")
def sort(
    low: Lowering, node: Node, x: TensorValue, dim: int = -1, descending: bool = False
) -> list[TensorValue | None]:
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
    if _is_tile(low, node, x, dim):
        stable = stable or (is_read(node, 1) and x.shape[dimension(dim, x.rank)].const > _NETWORK)
        return _in_tiles(low, node, x, dimension(dim, x.rank), None, descending, stable)
    rows = _Rows(low, node, x, dim)
    return _first(low, node, rows, rows.length, descending, stable or rows.short)


def _is_tile(low: Lowering, node: Node, x: TensorValue, dim: int) -> bool:
    """Whether rows are sorted by programs of a GPU, each of which holds some of them in a tile."""
    if not low.on_gpu(x) or not x.rank:
        return False
    length, least = x.shape[dimension(dim, x.rank)], _longest_of_threads(is_read(node, 1))
    wide = DTYPES[x.dtype].size == 8 and is_read(node, 1)  # keys of 64 bits have no room for places
    return length.is_int and least < length.const <= MOST and not wide


def _in_tiles(
    low: Lowering, node: Node, x: TensorValue, along: int, count: int | None, descending: bool, ties: bool
) -> list[TensorValue | None]:
    """Rows that are dimensions of a nest, each element of it the one that comes at its place; the first ``count``.

    H200: the library sorts 18 million float32 in rows of 192 in 2270 us.
    """
    places = is_read(node, 1)
    _check_dtype(low, x)
    _check(low, x, places, ties)
    results = [low.result(node, k) if is_read(node, k) else None for k in range(2)]
    b = low.nest(node, x.shape)
    keys = Keys(b, x.dtype, MOST, descending, places, ties)
    if DTYPES[x.dtype].size == 8 and keys.tagged:
        raise Decline("zeros of both signs in float64 are sorted by the library")
    place = b.index(b.axes[along], "int32")
    key = keys.key(b.load(x), place)
    found = Key(b.scan("sort", key.bits, along, reverse=descending and not keys.tagged))
    taken = place < count if count is not None else None
    for result, made in zip(results, (keys.value, keys.place), strict=True):
        if result is not None:
            b.store(result, made(found), list(b.axes), mask=taken)
    low.finish(b)
    return results


def top(low: Lowering, node: Node, x: TensorValue, k: int, dim: int, largest: bool) -> list[TensorValue | None]:
    """The first ``k`` elements of each row in order, and where they were. Declines what the library has to do."""
    if _is_tile(low, node, x, dim):
        return _in_tiles(low, node, x, dimension(dim, x.rank), k, largest, ties=False)
    return _first(low, node, _Rows(low, node, x, dim), k, largest, ties=False)


def _first(
    low: Lowering, node: Node, rows: _Rows, count: int, descending: bool, ties: bool
) -> list[TensorValue | None]:
    values, places = (low.result(node, k) if is_read(node, k) else None for k in range(2))
    row = rows.sorted(descending, places is not None, ties)
    for rank in range(count):
        if values is not None:
            rows.b.store(values, row.value(rank), rows.at(rank))
        if places is not None:
            rows.b.store(places, row.place(rank), rows.at(rank))
    low.finish(rows.b)
    return [values, places]


@rule("aten.kthvalue.default")
def kthvalue(
    low: Lowering, node: Node, x: TensorValue, k: int | Expr, dim: int = -1, keepdim: bool = False
) -> list[TensorValue | None]:
    """The ``k``-th smallest element of each row, NaN being the greatest, and where it was.

    On a CPU equal elements have one of their places, always the same: torch leaves it open for GPUs only, and for
    ``median`` and ``topk``.
    """
    rank = integer(k, "a rank")
    if is_read(node, 1) and not low.on_gpu(x):
        raise Decline("which of equal elements is taken, and gets the gradient, is as the library's selection has it")
    return _selected(low, node, x, dim, keepdim, lambda rows, row: _Selection(rows, row).at(rank - 1))


@rule("aten.median.dim")
def median(low: Lowering, node: Node, x: TensorValue, dim: int, keepdim: bool = False) -> list[TensorValue | None]:
    """The lower one of the elements in the middle of each row, or its first NaN, and where it was."""
    return _selected(low, node, x, dim, keepdim, lambda rows, row: _Selection(rows, row).median())


@rule("aten.nanmedian.dim")
def nanmedian(low: Lowering, node: Node, x: TensorValue, dim: int, keepdim: bool = False) -> list[TensorValue | None]:
    """As ``median``, of the elements that are numbers; NaN where there are none."""
    return _selected(low, node, x, dim, keepdim, lambda rows, row: _Selection(rows, row).nanmedian())


def _selected(
    low: Lowering,
    node: Node,
    x: TensorValue,
    dim: int,
    keepdim: bool,
    choose: Callable[[_Rows, SortedRow], tuple[Value, Value]],
) -> list[TensorValue | None]:
    if x.dtype == "bool":
        raise Decline("eager selects no booleans")
    values, places = (low.result(node, k) if is_read(node, k) else None for k in range(2))
    rows = _Rows(low, node, x, dim)
    value, place = choose(rows, rows.sorted(False, places is not None, ties=False))
    at = rows.at(0) if keepdim else list(rows.b.axes)
    for result, found in ((values, value), (places, place)):
        if result is not None:
            rows.b.store(result, found, at)
    low.finish(rows.b)
    return [values, places]


class _Selection:
    """Elements of sorted rows, each with its place; without a meaning where places are not kept."""

    def __init__(self, rows: _Rows, row: SortedRow) -> None:
        self.b, self.row, self.length = rows.b, row, rows.length
        self.missing = [element.op("isnan").to("int32") for element in row.given] if row.is_float else []

    def at(self, rank: int) -> tuple[Value, Value]:
        return self.row.value(rank), self.row.place(rank) if self.row.tagged else self.b.constant(0, "int64")

    def median(self) -> tuple[Value, Value]:
        value, place = self.at((self.length - 1) // 2)
        if not self.missing:
            return value, place
        last, _ = self.at(self.length - 1)
        first = self.b.constant(0, "int64")
        for k in reversed(range(self.length)):
            first = self.b.where(self.missing[k].op("ne", 0), k, first)
        broken = last.op("isnan")
        return self.b.where(broken, last, value), self.b.where(broken, first, place)

    def nanmedian(self) -> tuple[Value, Value]:
        if not self.missing:
            return self.median()
        count = functools.reduce(operator.add, self.missing)
        rank = (self.length - 1 - count).op("maximum", 0).op("shr", 1)
        value, place = self.at(0)
        for k in range(1, (self.length - 1) // 2 + 1):
            later, there = self.at(k)
            here = rank.equals(k)
            value, place = self.b.where(here, later, value), self.b.where(here, there, place)
        return value, place
