"""A rule's left side as it is looked for: calls with wildcards in the places of their arguments."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from lamina.base.rule import Rule

__all__ = ["Call", "Constant", "DimensionOf", "DtypeOf", "Literal", "Pattern", "ScalarOf", "Size", "SizeOf", "Wild"]


@dataclass(frozen=True, slots=True)
class Size:
    """``(ratio * product of sizes) ** power``. A name is one the user gave, or "-2" for a tensor's own last but one."""

    ratio: Fraction
    names: tuple[str, ...]
    power: float = 1


@dataclass(frozen=True, slots=True)
class Wild:
    """Any tensor that fits the parameter ``name``."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant as it is."""

    value: Any


@dataclass(frozen=True, slots=True)
class ScalarOf:
    """Any number: parameter ``name``."""

    name: str


@dataclass(frozen=True, slots=True)
class SizeOf:
    """A number made of sizes."""

    size: Size


@dataclass(frozen=True, slots=True)
class DimensionOf:
    """Any dimension, counted from the last: parameter ``name``."""

    name: str


@dataclass(frozen=True, slots=True)
class DtypeOf:
    """The dtype that the tensors of any dtype have."""


@dataclass(frozen=True, slots=True)
class Constant:
    """The number in a sum or product: ``value``, and scalars and sizes, each True if it is subtracted or divides."""

    value: Any
    scalars: tuple[tuple[str, bool], ...] = ()
    sizes: tuple[tuple[Size, bool], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """An operation. For a sum or a product ``args`` are the operands in any order, ``constant`` the number among them.

    Calls are the same only if they are one object: a value that is used twice must be found as one value.
    """

    op: Hashable
    args: tuple[Any, ...]
    constant: Constant | None
    depth: int


@dataclass(frozen=True, slots=True)
class Pattern:
    """A rule's left side as traced once.

    ``roots`` are its results, ``target`` the operation of the first, ``calls`` how many operations it has and ``depth``
    how many of them follow on each other. ``dtypes`` are those that tensors of any dtype must have; all if empty.
    ``pairs`` are the operations of the first result's operands, each alone (with None) and with one of its operands'.
    """

    rule: Rule
    roots: tuple[Call, ...]
    target: Hashable
    calls: int
    depth: int
    dtypes: tuple[torch.dtype, ...] = ()
    pairs: frozenset[tuple[Hashable, Hashable | None]] = frozenset()
