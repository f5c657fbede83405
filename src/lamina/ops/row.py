"""The row of an operation: what every stage may know of one overload."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lamina.base.namespaces import KNOWN
from lamina.ops.element import Formula

__all__ = ["ARRANGEMENTS", "KINDS", "NEVER_AGAIN", "Row", "rows"]

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
    WINDOW: "an element of the result comes from a few of an operand's, from places that are computed or read",
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

NEVER_AGAIN = frozenset((SCATTER, WINDOW, PRODUCT, ATTENTION, SORT, TRANSFORM, RANDOM, DYNAMIC, NUMBER, EFFECT))
"""Kinds that a backward does not compute again: they take more than reading, or need memory that is filled first.

Windows read what they are computed from several times, so that it is computed as often or stored: with pools computed
again, backwards of programs that pool took 1.3 to 1.5 times as long (two CPU cores, bfloat16).
"""

KEPT = "kept"
RESHAPED = "reshaped"
UNIT = "unit"
PERMUTED = "permuted"
REPEATED = "repeated"
PART = "part"

ARRANGEMENTS: dict[str, str] = {
    KEPT: "each in its place",
    RESHAPED: "in the same order, in a shape that is given",
    UNIT: "in the same order, with dimensions of one element put in or taken out",
    PERMUTED: "with the dimensions in another order",
    REPEATED: "repeated along dimensions of one element",
    PART: "some of them",
}
"""How the elements of an operand may stand in the result of an operation that computes nothing, and what each says."""


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of the operation ``overload`` ("aten.add.Tensor").

    - ``kind``: one of ``KINDS``.
    - ``work``: arithmetic on each element (of the result; of all operands where those are reduced or scanned) when the
      operation is computed again in a kernel, in the time to move one byte between a CPU core and its memory; ``None``
      or infinite where it is never computed again.
    - ``formula``: an element of the result of a pointwise operation from one of each tensor among the arguments, in the
      arithmetic type of the result, and from the numbers among them. Written so, the operation needs no rule; one that
      is given counts.
    - ``reason``: why no rule lowers it to loops, so that it is called in ATen; "" for what is lowered.
    - ``becomes``: what it is taken apart to before differentiation is recorded, by torch's decomposition; "" for what
      stays whole.
    - ``elements``: how those of the first operand stand in the result, one of ``ARRANGEMENTS``; "" where others do.
    - ``neutral``: the number which, as second operand, leaves the first one as it is; ``signed_zero`` says that it does
      so of -0.0 too.
    - ``exact``: an elementwise function of one operand that rounds nothing: of the largest of some numbers it gives
      what is the largest after rounding, too.
    - ``commutes``: its two operands may be in any order.
    - ``same_as``: the overload, with the same arguments, of which it is another name.
    - ``factors``: the position of the first factor of a product of two matrices, or batches of them; what comes before
      it is added.
    - ``quick``: torch has a public function of its name that reaches its kernel with less work on the way.
    - ``out``: it writes its one result into memory given as ``out=`` at no extra cost, with any dense strides.
    - ``by_strides``: addresses memory by strides that are given.
    - ``unset``: the elements of its result are whatever was in memory.
    - ``any_dtype``: eager has it for every dtype, those of unsigned integers included.
    - ``shares``: its result may share memory with an operand though neither kind nor schema says so.
    """

    overload: str
    kind: str
    work: float | None = None
    formula: Formula | None = None
    reason: str = ""
    becomes: str = ""
    elements: str = ""
    neutral: int | None = None
    signed_zero: bool = True
    exact: bool = False
    commutes: bool = False
    same_as: str = ""
    factors: int | None = None
    quick: bool = False
    out: bool = False
    by_strides: bool = False
    unset: bool = False
    any_dtype: bool = False
    shares: bool = False

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
        space, parts = (first, rest) if first in KNOWN else ("aten", [first, *rest])
        for overload in (parts[1] if len(parts) > 1 else "default").split("|"):
            yield Row(f"{space}.{parts[0]}.{overload}", kind, **facts)
