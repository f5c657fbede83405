"""Sliding windows: which elements each output of a pooling operation sees, and which outputs see an element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Protocol

from torch.fx import Node

from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import NestBuilder, Scalar, Value, added_up
from lamina.lower.context import Lowering
from lamina.lower.positions import all_of, inside
from lamina.lower.rules import Decline
from lamina.lower.values import TensorValue

__all__ = [
    "COMPARED",
    "WRITTEN_OUT",
    "Adaptive",
    "Fixed",
    "Number",
    "Single",
    "Sliding",
    "Span",
    "filter_spans",
    "fixed_spans",
    "spread",
]

WRITTEN_OUT = 27
"""Windows with more elements than this are looped over instead of written out."""

COMPARED = 16
"""Places that an element may look at on a GPU for whether they name it, where those would else add to it in memory."""

Number = tuple[Expr | int, ...]
"""Which element of a window, along each of its dimensions."""


class Span(Protocol):
    """The windows along one dimension."""

    @property
    def size(self) -> int:
        """Elements of the largest window."""

    @property
    def covers(self) -> int:
        """The largest number of windows that one element is in."""

    def place(self, output: Expr, j: Expr | int) -> Expr:
        """The element that is number ``j`` in the window of ``output``."""

    def valid(self, b: NestBuilder, output: Expr, j: Expr | int) -> Value | None:
        """Whether the window has that element; ``None`` when it always has."""

    def count(self, b: NestBuilder, output: Expr, dtype: str) -> Value | int:
        """How many elements count towards the mean of the window of ``output``."""

    def output(self, place: Expr, j: Expr | int) -> Expr:
        """The ``j``-th window that may hold the element at ``place``."""

    def holds(self, b: NestBuilder, place: Expr, j: Expr | int) -> Value | None:
        """Whether there is such a window and it holds the element; ``None`` when always."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Windows of one size: that of output ``k`` starts at ``k * step - pad``. Sizes: of the input, of the output."""

    size: int
    step: int
    pad: int
    dilation: int
    source: Expr
    result: Expr
    ceil_mode: bool = False
    padded: bool = True

    @property
    def covers(self) -> int:
        return (self.size - 1) * self.dilation // self.step + 1

    def place(self, output: Expr, j: Expr | int) -> Expr:
        return output * self.step - self.pad + as_expr(j) * self.dilation

    def valid(self, b: NestBuilder, output: Expr, j: Expr | int) -> Value | None:
        return inside(b, self.place(output, j), self.source)

    def count(self, b: NestBuilder, output: Expr, dtype: str) -> Value | int:
        start = output * self.step - self.pad
        end = start + self.size
        limit = self.source + self.pad if self.padded else self.source
        whole_end = (limit - end).nonnegative() or (not self.ceil_mode and (self.padded or not self.pad))
        whole_start = self.padded or start.nonnegative()
        if whole_end and whole_start:
            return self.size
        stop, first = b.index(end), b.index(start)
        if not whole_end:
            stop = stop.op("minimum", b.index(limit))
        if not whole_start:
            first = first.op("maximum", 0)
        return (stop - first).to(dtype)

    def output(self, place: Expr, j: Expr | int) -> Expr:
        return (place + self.pad) // self.step - j

    def within(self, place: Expr, j: Expr | int) -> Expr:
        """How far from its beginning the window of ``output`` has the element, with padding."""
        return (place + self.pad) % self.step + as_expr(j) * self.step

    def holds(self, b: NestBuilder, place: Expr, j: Expr | int) -> Value | None:
        exists = inside(b, self.output(place, j), self.result)
        distance = self.within(place, j)
        reach = (self.size - 1) * self.dilation + 1
        reached = None if distance.below(reach) else b.index(distance) < reach
        return all_of([exists, reached])


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Windows that divide ``source`` elements as evenly as they can among ``result`` outputs."""

    source: int
    result: int

    def _first(self, output: Expr) -> Expr:
        return output * self.source // self.result

    def _end(self, output: Expr) -> Expr:
        return ((output + 1) * self.source + self.result - 1) // self.result

    @property
    def size(self) -> int:
        ends = (int(self._end(as_expr(k)) - self._first(as_expr(k))) for k in range(self.result))
        return max(ends, default=0)

    @property
    def covers(self) -> int:
        starts = [int(self._first(as_expr(k))) for k in range(self.result)]
        found = (
            sum(start <= place for start in starts) - place * self.result // self.source for place in range(self.source)
        )
        return max(found, default=0)

    def place(self, output: Expr, j: Expr | int) -> Expr:
        return self._first(output) + j

    def valid(self, b: NestBuilder, output: Expr, j: Expr | int) -> Value | None:
        if self.source % self.result == 0:
            return None
        return b.index(self.place(output, j)) < b.index(self._end(output))

    def count(self, b: NestBuilder, output: Expr, dtype: str) -> Value | int:
        if self.source % self.result == 0:
            return self.source // self.result
        return b.index(self._end(output) - self._first(output)).to(dtype)

    def output(self, place: Expr, j: Expr | int) -> Expr:
        return place * self.result // self.source + j

    def holds(self, b: NestBuilder, place: Expr, j: Expr | int) -> Value | None:
        output = self.output(place, j)
        if self.source % self.result == 0:
            return None
        exists = inside(b, output, as_expr(self.result))
        return all_of([exists, b.index(self._first(output)) <= b.index(place)])


@dataclass(frozen=True, slots=True)
class Single:
    """Windows of one element each, as they lie."""

    size: int = 1
    covers: int = 1

    def place(self, output: Expr, j: Expr | int) -> Expr:
        return output

    def valid(self, b: NestBuilder, output: Expr, j: Expr | int) -> Value | None:
        return None

    def count(self, b: NestBuilder, output: Expr, dtype: str) -> Value | int:
        return 1

    def output(self, place: Expr, j: Expr | int) -> Expr:
        return place

    def holds(self, b: NestBuilder, place: Expr, j: Expr | int) -> Value | None:
        return None


def spread(value: Sequence[int] | int, rank: int) -> tuple[int, ...]:
    """One number for each dimension, from a list that may hold one for all."""
    listed = [value] if isinstance(value, int) else list(value)
    if any(not isinstance(v, int) for v in listed):
        raise Decline("a window known only at run time")
    return tuple(listed) * rank if len(listed) == 1 else tuple(listed)


def fixed_spans(
    source: Sequence[Expr],
    result: Sequence[Expr],
    size: Sequence[int] | int,
    step: Sequence[int] | int,
    pad: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
    ceil_mode: bool = False,
    padded: bool = True,
) -> list[Fixed]:
    """The windows of a pooling operation over the dimensions of ``source``; without steps they touch each other."""
    rank = len(source)
    sizes = spread(size, rank)
    steps = spread(step, rank) if isinstance(step, int) or len(step) else sizes
    rows = zip(sizes, steps, spread(pad, rank), spread(dilation, rank), source, result, strict=True)
    return [Fixed(n, move, edge, gap, of, to, ceil_mode, padded) for n, move, edge, gap, of, to in rows]


def filter_spans(
    taps: Sequence[Expr], settings: Sequence[Any], source: Sequence[Expr], result: Sequence[Expr]
) -> list[Fixed]:
    """The windows of a filter of known sizes; ``settings`` are the arguments of ``aten.convolution`` after the bias."""
    step, pad, dilation, *_ = settings
    return fixed_spans(source, result, [int(n) for n in taps], step, pad, dilation)


class Sliding:
    """A nest over ``shape``, whose last dimensions have windows of ``counts`` elements, written out or looped over.

    Of large windows only the rows are looped over where ``by_rows``.
    """

    def __init__(
        self, low: Lowering, node: Node, shape: Sequence[Expr], counts: Sequence[int], by_rows: bool = False
    ) -> None:
        depth = 0 if prod(counts) <= WRITTEN_OUT else 1 if by_rows else len(counts)
        self.looped = depth > 0
        self.b = low.nest(node, [*shape, *(as_expr(n) for n in counts[:depth])])
        self.at = self.b.axes[: len(shape)]
        split = len(shape) - len(counts)
        self.outer, self.inner = self.at[:split], self.at[split:]
        extra = self.b.axes[len(shape) :]
        self.numbers: list[Number] = [(*extra, *rest) for rest in product(*(range(n) for n in counts[depth:]))]
        self._valid: dict[tuple[int, Expr | int], Value | None] = {}

    def valid(self, spans: Sequence[Span], number: Number) -> Value | None:
        """Whether element ``number`` of the window at the nest's position exists."""
        found = []
        for d, (span, at, j) in enumerate(zip(spans, self.inner, number, strict=True)):
            if (d, j) not in self._valid:
                self._valid[d, j] = span.valid(self.b, at, j)
            found.append(self._valid[d, j])
        return all_of(found)

    def holds(self, spans: Sequence[Span], number: Number) -> Value | None:
        """Whether window ``number`` of those that may hold the element at the nest's position does."""
        found = []
        for d, (span, at, j) in enumerate(zip(spans, self.inner, number, strict=True)):
            if (d, j) not in self._valid:
                self._valid[d, j] = span.holds(self.b, at, j)
            found.append(self._valid[d, j])
        return all_of(found)

    def element(self, x: TensorValue, spans: Sequence[Span], number: Number, fill: Scalar) -> Value:
        """Element ``number`` of the window; ``fill`` where it does not exist."""
        place = [s.place(at, j) for s, at, j in zip(spans, self.inner, number, strict=True)]
        return self.b.load(x, [*self.outer, *place], self.valid(spans, number), fill)

    def total(self, op: str, values: Sequence[Value]) -> Value:
        """The values of all elements combined: ``op`` is "add" or "maximum", which is the first of 0.0 and -0.0."""
        if not self.looped and op == "add":
            return added_up(values)
        result = values[0]
        for v in values[1:]:
            result = v.op(op, result)  # of two equal values a maximum is the second
        if not self.looped:
            return result
        axes = range(len(self.at), len(self.b.axes))
        return self.b.reduce({"add": "sum", "maximum": "max"}[op], result, list(axes))

    def area(self, counts: Sequence[Value | int], dtype: str) -> Value:
        """The product of counts."""
        fixed = prod(c for c in counts if isinstance(c, int))
        result: Value | None = None
        for c in counts:
            if isinstance(c, Value):
                result = c if result is None else result * c
        if result is None:
            return self.b.constant(fixed, dtype)
        return result if fixed == 1 else result * fixed
