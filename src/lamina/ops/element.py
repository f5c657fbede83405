"""What a formula computes with: one element of each tensor, whoever it is written for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

__all__ = ["Element", "Formula", "clamped", "largest", "not_above", "not_below", "smallest", "where"]


class Element(Protocol):
    """One element of a tensor, in the arithmetic type ``dtype`` of the result.

    Beside Python's operators there are the scalar operations of ``lamina.ir.ops.OPS`` by name, and
    ``builder.constant(number, dtype)``. No element has a truth value: formulas decide by dtypes and by the numbers that
    they are given.
    """

    builder: Any
    dtype: str

    def op(self, name: str, *others: Any) -> Element:
        """A scalar operation applied to this element and others; numbers become constants of its dtype."""

    def to(self, dtype: str) -> Element:
        """The element converted to ``dtype``."""

    def equals(self, other: Any) -> Element:
        """Whether the two are equal, as a truth value."""

    def __add__(self, other: Any) -> Element: ...
    def __radd__(self, other: float) -> Element: ...
    def __sub__(self, other: Any) -> Element: ...
    def __rsub__(self, other: float) -> Element: ...
    def __mul__(self, other: Any) -> Element: ...
    def __rmul__(self, other: float) -> Element: ...
    def __truediv__(self, other: Any) -> Element: ...
    def __rtruediv__(self, other: float) -> Element: ...
    def __neg__(self) -> Element: ...
    def __lt__(self, other: Any) -> Element: ...
    def __le__(self, other: Any) -> Element: ...
    def __gt__(self, other: Any) -> Element: ...
    def __ge__(self, other: Any) -> Element: ...
    def __and__(self, other: Any) -> Element: ...
    def __or__(self, other: Any) -> Element: ...


Formula: TypeAlias = Callable[..., Element]
"""An element of the result from one element of each tensor among the arguments, and from numbers as they are given."""


def largest(a: Element, b: Any) -> Any:
    """The greater; NaN if either is."""
    return a | b if a.dtype == "bool" else a.op("maximum", b)


def smallest(a: Element, b: Any) -> Any:
    """The lesser; NaN if either is."""
    return a & b if a.dtype == "bool" else a.op("minimum", b)


def not_below(v: Element, bound: Any) -> Any:
    """``v``, but at least ``bound``; NaN if either is. Against a number, as eager, a zero keeps its sign."""
    if not isinstance(bound, int | float):
        return largest(v, bound)
    if bound != bound or v.dtype == "bool":
        return largest(v, v.builder.constant(bound, v.dtype))
    return where(v < bound, bound, v)


def not_above(v: Element, bound: Any) -> Any:
    """``v``, but at most ``bound``; NaN if either is. Against a number, as eager, a zero keeps its sign."""
    if not isinstance(bound, int | float):
        return smallest(v, bound)
    if bound != bound or v.dtype == "bool":
        return smallest(v, v.builder.constant(bound, v.dtype))
    return where(v > bound, bound, v)


def clamped(v: Element, low: float, high: float) -> Element:
    """``v`` held between two numbers; NaN stays, and so does a negative zero at a bound of zero."""
    held: Element = not_above(not_below(v, low), high)
    return held


def where(condition: Element, a: Any, b: Any) -> Element:
    """``a`` where the condition holds, else ``b``; at least one of them is an element, of whose dtype a number is."""
    return condition.op("where", a, b)
