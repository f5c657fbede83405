"""Constants of a pattern, compared with the numbers in a graph: at once, or when all tensors are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from lamina.base.rule import Rule, TensorWildcard
from lamina.rewrite.match_sizes import size_of
from lamina.rewrite.pattern import Constant, DtypeOf, SizeOf
from lamina.rewrite.terms import Number
from lamina.rewrite.torch_private import same_number, symbol_of

__all__ = ["Owed", "folded", "is_close", "is_literal", "is_number", "tolerance_of", "with_constant", "with_number"]

_ROUNDING, _ROUNDING_64 = 2.0**-24, 2.0**-51
"""Relative: half a unit in the last place of float32, in which narrower dtypes are computed too; and of float64, with
room for a constant that is the quotient or product of others."""


@dataclass(frozen=True, slots=True)
class Owed:
    """A constant that can be compared when all sizes are known: what the pattern has, and what the graph.

    ``product`` says of the number in a sum or product which of them it is in.
    """

    wanted: Constant | SizeOf | DtypeOf
    given: Any
    product: bool = False


def is_number(value: Any) -> bool:
    """Whether an argument in a graph is a number, known or not."""
    if isinstance(value, Node):
        return not isinstance(value.meta.get("val"), (torch.Tensor, tuple, list, bool, type(None)))
    return _is_plain(value)


def _is_plain(value: Any) -> bool:
    return type(value) in (int, float)


def tolerance_of(rule: Rule, root: Node) -> float:
    """How far, relative, a constant may be from that of ``rule`` where ``root`` is the match's first result."""
    if rule.tolerance is not None:
        return rule.tolerance
    value = root.meta.get("val")
    wide = isinstance(value, torch.Tensor) and value.dtype in (torch.float64, torch.complex128)
    return _ROUNDING_64 if wide else _ROUNDING


def is_close(a: float, b: float, tolerance: float) -> bool:
    """Whether two numbers are equal but for ``tolerance``."""
    return a == b or math.isclose(a, b, rel_tol=tolerance)


def is_literal(wanted: Any, given: Any, tolerance: float) -> bool:
    """Whether ``given`` is the constant ``wanted``."""
    if isinstance(wanted, float) and isinstance(given, (int, float)) and not isinstance(given, bool):
        return is_close(wanted, given, tolerance)
    if isinstance(wanted, bool) or isinstance(given, (bool, Node)):
        return wanted is given
    return bool(wanted == given)


def folded(product: bool, numbers: Sequence[Number]) -> Any:
    """The numbers of a sum, or ``product``, as one; None if that is not a number."""
    if len(numbers) == 1 and not numbers[0].inverse:
        return numbers[0].value
    total: Any = 1 if product else 0
    for number in numbers:
        if product and number.inverse and number.value == 0:
            return None
        total = _applied(product, total, number.value, number.inverse)
    return total


def _applied(product: bool, total: Any, value: Any, inverse: bool) -> Any:
    if product:
        return total / value if inverse else total * value
    return total - value if inverse else total + value


def with_number(name: str, given: Any, bound: Mapping[str, Any], tolerance: float) -> Mapping[str, Any] | None:
    """``bound`` with ``given`` as the parameter ``name``; None if that is another number already."""
    known = bound.get(name)
    if known is None:
        return {**bound, name: given}
    return bound if _is_plain(known) and _is_plain(given) and is_close(known, given, tolerance) else None


def with_constant(
    owed: Owed, parameters: Mapping[str, Any], bound: Mapping[str, Any], tolerance: float
) -> Mapping[str, Any] | None:
    """``bound`` with what the constant says of a scalar; None if it is not what the pattern has."""
    wanted, given = owed.wanted, owed.given
    if isinstance(wanted, DtypeOf):
        name = next(n for n, w in parameters.items() if isinstance(w, TensorWildcard) and not w.dtypes)
        return bound if bound[name].meta["val"].dtype == given else None
    if isinstance(wanted, SizeOf):
        size = size_of(wanted.size, parameters, bound)
        return bound if size is not None and _is_size(size, given, tolerance) else None
    value = wanted.value
    for part, inverse in wanted.sizes:
        size = size_of(part, parameters, bound)
        if not _is_plain(size):
            return None
        value = _applied(owed.product, value, size, inverse)
    if not wanted.scalars:
        return bound if is_close(value, given, tolerance) else None
    ((name, inverse),) = wanted.scalars
    if owed.product:
        if value == 0 or (inverse and given == 0):
            return None
        rest = given if value == 1 else given / value
        number = 1 / rest if inverse else rest
    else:
        rest = given if value == 0 else given - value
        number = -rest if inverse else rest
    return with_number(name, number, bound, tolerance)


def _is_size(wanted: Any, given: Any, tolerance: float) -> bool:
    if isinstance(given, Node):
        given = given.meta.get("val")
    if symbol_of(wanted) is not None or symbol_of(given) is not None:
        return same_number(wanted, given)
    return _is_plain(given) and is_close(wanted, given, tolerance)
