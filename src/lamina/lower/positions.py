"""Where elements come from: dimensions, starts of slices, bounds and checked indices that data movement is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from lamina.base.symbolic.torch_private import is_true
from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import NestBuilder, Scalar, Value
from lamina.lower.context import Lowering
from lamina.lower.rules import Decline
from lamina.lower.sizes import expr_of
from lamina.lower.values import TensorValue

__all__ = [
    "Positions",
    "all_of",
    "argument",
    "at_least_1d",
    "bounded_index",
    "copy_of",
    "dimension",
    "filled",
    "given",
    "inside",
    "integer",
    "moved",
    "replaced",
    "select_place",
    "shape_of",
    "slice_length",
    "slice_start",
    "slice_step",
    "wrapped_index",
]

Positions = Callable[[Sequence[Expr]], Sequence[Expr]]
"""From a position in a result to the position in its source."""


def shape_of(node: Node, position: int | None = None) -> list[Expr]:
    """The shape of a node's result (of its ``position``-th result)."""
    val = node.meta["val"]
    return [expr_of(n) for n in (val if position is None else val[position]).shape]


def dimension(dim: int, rank: int) -> int:
    """The dimension counted from the front; a tensor without dimensions has one."""
    return dim % max(rank, 1)


def integer(value: int | Expr, what: str) -> int:
    """A number that must be known while compiling; declines otherwise."""
    expr = as_expr(value)
    if not expr.is_int:
        raise Decline(f"{what} known only at run time")
    return int(expr)


def replaced(position: Sequence[Expr], dim: int, place: Expr) -> list[Expr]:
    """``position`` with ``place`` in dimension ``dim``."""
    return [place if k == dim else p for k, p in enumerate(position)]


def at_least_1d(x: TensorValue) -> TensorValue:
    """A tensor without dimensions as a vector of one element; others as they are."""
    return x if x.rank else x.view([as_expr(1)], [])


def given(value: Any) -> Any:
    """An argument of a node as torch has it: the integer, symbolic or not, that a node among them stands for."""
    return value.meta["val"] if isinstance(value, Node) else value


def argument(node: Node, position: int, name: str) -> Any:
    """An argument of a call; ``None`` where it is not given."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name)


def slice_start(start: Any, size: Any) -> Expr:
    """The first position of a slice of a dimension of ``size``, counted from its front.

    Both are integers as torch has them. Declines where nothing proves on which side of zero the start is.
    """
    first = 0 if start is None else given(start)
    size = given(size)
    if not isinstance(first, torch.SymInt) and not isinstance(size, torch.SymInt):
        return as_expr(min(first, size) if first >= 0 else max(first + size, 0))
    if is_true(first >= 0):
        return expr_of(first)
    if not is_true(first < 0):
        raise Decline("the start of a slice may have either sign")
    if is_true(first + size >= 0):
        return expr_of(first) + expr_of(size)
    if is_true(first + size <= 0):
        return as_expr(0)
    raise Decline("a slice that starts at a run-time distance from the end")


def slice_length(start: Any, end: Any, step: Any, size: Any) -> Any:
    """How many elements a slice has, an integer as torch has it. Declines where nothing proves which case it is."""
    step, size = 1 if step is None else given(step), given(size)
    first = _clamped(0 if start is None else given(start), size)
    last = _clamped(size if end is None else given(end), size)
    if is_true(last <= first):
        return 0
    if is_true(first <= last):
        return (last - first + step - 1) // step
    raise Decline("a slice that may be empty")


def _clamped(place: Any, size: Any) -> Any:
    """An end of a slice, counted from the front and within the dimension."""
    if is_true(place < 0):
        place = place + size
        if is_true(place <= 0):
            return 0
    if is_true(place >= size):
        return size
    if is_true(place >= 0) and is_true(place <= size):
        return place
    raise Decline("an end of a slice that may be out of range")


def slice_step(step: Any) -> Expr:
    """The step of a slice, an integer as torch has it. Declines where nothing proves that it is positive."""
    step = 1 if step is None else given(step)
    if not is_true(step > 0):
        raise Decline("the step of a slice may be zero or negative")
    return expr_of(step)


def select_place(index: Any, size: Any) -> Expr:
    """The position in a dimension of ``size`` that ``index`` names. Declines where nothing proves that it exists."""
    index, size = given(index), given(size)
    if is_true(index >= 0) and is_true(index < size):
        return expr_of(index)
    if is_true(index < 0) and is_true(index + size >= 0):
        return expr_of(index) + expr_of(size)
    raise Decline("an index that may be out of range")


def all_of(conditions: Sequence[Value | None]) -> Value | None:
    """The conjunction of those conditions that are there."""
    result: Value | None = None
    for cond in conditions:
        if cond is not None:
            result = cond if result is None else result & cond
    return result


def inside(b: NestBuilder, place: Expr, size: Expr) -> Value | None:
    """Whether ``0 <= place < size``, or ``None`` when that always holds."""
    low = None if place.nonnegative() else b.index(place) >= 0
    if place.below(size):
        return low
    high = b.index(place) < (int(size) if size.is_int else b.index(size))
    return all_of([low, high])


def _size(b: NestBuilder, size: Expr) -> Value:
    return b.constant(int(size), "int64") if size.is_int else b.index(size)


def _checked(b: NestBuilder, index: Value, size: Expr, message: str, error: str) -> Expr:
    found = (index >= 0) & (index < _size(b, size))
    b.check(found, message, error)
    return b.loaded(b.where(found, index, 0), size)


def bounded_index(b: NestBuilder, index: Value, size: Expr, message: str, error: str = "IndexError") -> Expr:
    """A loaded index that must be in ``[0, size)``: otherwise the program fails with ``error(message)``."""
    return _checked(b, index.to("int64"), size, message, error)


def wrapped_index(b: NestBuilder, index: Value, size: Expr, message: str | None, error: str = "IndexError") -> Expr:
    """A loaded index that may count from the end; without a message it is taken to be in range."""
    index = index.to("int64")
    index = b.where(index < 0, index + _size(b, size), index)
    return b.loaded(index, size) if message is None else _checked(b, index, size, message, error)


def moved(low: Lowering, node: Node, x: TensorValue, position: Positions) -> TensorValue:
    """The node's result, each element of which is the element of ``x`` at ``position``."""
    out = low.result(node)
    low.plain(x.dtype, out.dtype)
    b = low.nest(node, out.shape)
    b.store(out, b.load(x, position(b.axes)))
    low.finish(b)
    return out


def copy_of(low: Lowering, node: Node, x: TensorValue) -> TensorValue:
    """The node's result, so far a copy of ``x``."""
    out = low.result(node)
    return low.into(node, out, lambda v: v, x, dtype=x.dtype)


def filled(low: Lowering, node: Node, value: Scalar = 0) -> TensorValue:
    """The node's result, so far the same number everywhere."""
    out = low.result(node)
    return low.into(node, out, lambda v: v, value, dtype=out.dtype)
