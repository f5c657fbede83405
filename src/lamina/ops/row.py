"""The row of an operation: what every stage may know of one overload."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["KINDS", "Row", "rows"]

VIEW = "view"
POINTWISE = "pointwise"
CREATION = "creation"
GATHER = "gather"
SCATTER = "scatter"
REDUCTION = "reduction"
SCAN = "scan"
WINDOW = "window"
PRODUCT = "product"
ATTENTION = "attention"
SORT = "sort"
TRANSFORM = "transform"
RANDOM = "random"
DYNAMIC = "dynamic"
NUMBER = "number"
EFFECT = "effect"

KINDS: dict[str, str] = {
    VIEW: "names elements of its operand's memory, where strides allow it",
    POINTWISE: "an element of the result comes from the elements at its own place, operands being broadcast",
    CREATION: "made of numbers and sizes alone",
    GATHER: "an element of the result is one of an operand's, or a constant, from a place that is computed or read",
    SCATTER: "an operand with elements put, or added, at places that are computed or read",
    REDUCTION: "elements of the result come from whole rows of an operand",
    SCAN: "an element of the result comes from those of its row up to its own place",
    WINDOW: "an element of the result comes from a few neighbours",
    PRODUCT: "sums of products of two operands",
    ATTENTION: "a product, a softmax and a product",
    SORT: "places by order",
    TRANSFORM: "a linear map of whole rows that has an algorithm of its own",
    RANDOM: "draws random numbers",
    DYNAMIC: "the size of the result, or its value as a Python number, depends on data",
    NUMBER: "a Python number from a tensor's sizes and strides",
    EFFECT: "called for what it does besides, or instead of, giving a result",
}
"""Kinds of operations, and what each says."""

_NAMESPACES = ("aten", "prims", "lamina")


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of the operation ``overload`` ("aten.add.Tensor").

    - ``kind``: one of ``KINDS``.
    - ``work``: arithmetic on each element (of the result; of all operands where those are reduced or scanned) when the
      operation is computed again in a kernel, in the time to move one byte between a CPU core and its memory; ``None``
      where it is never computed again.
    - ``reason``: why no rule lowers it to loops, so that it is called in ATen; "" for what is lowered.
    - ``becomes``: what it is taken apart to before differentiation is recorded, by torch's decomposition; "" for what
      stays whole.
    """

    overload: str
    kind: str
    work: float | None = None
    reason: str = ""
    becomes: str = ""

    @property
    def name(self) -> str:
        """The name that its overloads share: ``add`` of "aten.add.Tensor"."""
        return self.overload.split(".")[1]


def rows(kind: str, names: str, **facts: Any) -> Iterator[Row]:
    """Rows of one kind with the same ``facts``, fields of ``Row``.

    ``names`` is separated by blanks: "mean" for ``aten.mean.default``, "eq.Tensor|Scalar" for two overloads,
    "prims.add" for ``prims.add.default``.
    """
    for name in names.split():
        first, *rest = name.split(".")
        space, parts = (first, rest) if first in _NAMESPACES else ("aten", [first, *rest])
        for overload in (parts[1] if len(parts) > 1 else "default").split("|"):
            yield Row(f"{space}.{parts[0]}.{overload}", kind, **facts)
