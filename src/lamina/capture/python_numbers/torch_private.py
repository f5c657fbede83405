"""Operations on Python numbers that are symbols, set right where Lamina compiles; names as read in torch 2.11 to 2.13.

Where torch's rules for terms do not hold for all numbers that a symbol may stand for, the graph is made for the number
at hand: a guard asks for it, and another one is compiled for.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any

import sympy
import torch
from torch._dynamo import config
from torch._dynamo.source import TensorPropertySource
from torch._dynamo.variables.builder import VariableBuilder
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.sym_node import SymNode
from torch.utils._sympy.symbol import SymT, symbol_is_type
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from lamina.capture.trace_corrections.torch_private import compiles_for_lamina, traces_for_lamina

__all__ = ["correct_numbers"]


def correct_numbers() -> None:
    """Replace the methods, once."""
    _keep_zeros()
    _keep_remainders()
    _keep_floors_of_quotients()
    _keep_rounding()
    _guard_domains()
    _guard_cancellation()
    _guard_words()


def _keep_zeros() -> None:
    """Let a float that is zero be no symbol: the guard on what a symbol is takes 0.0 and -0.0 for the same."""
    wrap_any = VariableBuilder.wrap_symfloat

    @functools.wraps(wrap_any)
    def wrap(self: Any, value: float) -> Any:
        if value == 0.0 and compiles_for_lamina(self.tx.output):
            with config.patch(specialize_float=True):
                return wrap_any(self, value)
        return wrap_any(self, value)

    VariableBuilder.wrap_symfloat = wrap  # type: ignore[method-assign]


def _keep_remainders() -> None:
    """Let ``%`` of a float take the number at hand: torch's rules are those of integers, where ``k % 1`` is 0."""
    take_any = SymNode.mod

    @functools.wraps(take_any)
    def mod(self: Any, other: Any) -> Any:
        if float in (self.pytype, other.pytype) and traces_for_lamina():
            self, other = (_constant(node) for node in (self, other))
        return take_any(self, other)

    SymNode.mod = mod  # type: ignore[method-assign]


def _keep_floors_of_quotients() -> None:
    """Let ``//`` of floats take the numbers at hand: torch's is ``a / b``, rounded to an integer of 64 bits.

    Python's is the floor of the exact quotient (``1.0 // 0.1`` is 9.0), of any size, with NaN and signs of zeros.
    """

    def keep(divide_any: Any, swapped: bool) -> Any:
        @functools.wraps(divide_any)
        def divide(self: Any, other: Any) -> Any:
            both = (self, other)
            if any(isinstance(number, (float, torch.SymFloat)) for number in both) and traces_for_lamina():
                numbers = [_number(number) for number in both]
                return operator.floordiv(*(reversed(numbers) if swapped else numbers))
            return divide_any(self, other)

        return divide

    for kind in (torch.SymInt, torch.SymFloat):
        for name, swapped in (("__floordiv__", False), ("__rfloordiv__", True)):
            setattr(kind, name, keep(getattr(kind, name), swapped))


def _number(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return value.node.guard_int(__file__, 0)
    return value.node.guard_float(__file__, 0) if isinstance(value, torch.SymFloat) else value


def _constant(node: Any) -> Any:
    """``node`` for the number that it is now, on which a guard is made."""
    if node.pytype is int:
        return node.wrap_int(node.guard_int(__file__, 0))
    return node.wrap_float(node.guard_float(__file__, 0))


def _keep_rounding() -> None:
    """Let ``round(k, -1)`` of an integer round: torch gives ``k`` for any number of digits."""
    round_any: Any = torch.SymInt.__round__

    @functools.wraps(round_any)
    def rounded(self: Any, ndigits: Any = None) -> Any:
        if ndigits is not None and ndigits < 0 and traces_for_lamina():
            return round(int(self), int(ndigits))
        return round_any(self, ndigits)

    torch.SymInt.__round__ = rounded  # type: ignore[method-assign]


_LARGEST = sys.float_info.max
_WORD = torch.iinfo(torch.int64).max // 2
"""Floats up to here are integers of 64 bits when they are rounded."""


def _guard_domains() -> None:
    """Guard on what numbers must be for Python to compute with them, where it refuses others.

    Torch has an infinity or NaN for those, or an integer of 64 bits, and Dynamo leaves out what nothing uses. Where
    numbers at hand are refused, Python computes with them, and raises.
    """
    for name in ("float_truediv", "int_truediv"):
        _guard(name, operator.truediv, lambda a, b: b != 0)
    _guard("int_floordiv", operator.floordiv, lambda a, b: b != 0)
    _guard("mod", operator.mod, lambda a, b: b != 0)
    _guard("lshift", operator.lshift, lambda a, b: b >= 0)
    _guard("rshift", operator.rshift, lambda a, b: b >= 0)
    _guard("float_pow", operator.pow, lambda a, b: a > 0, _is_finite)
    _guard("sym_sqrt", math.sqrt, lambda a: a >= 0)
    _guard("sym_log2", math.log2, lambda a: a > 0)
    for name in ("asin", "acos"):
        _guard(f"sym_{name}", getattr(math, name), lambda a: a >= -1 and a <= 1)
    for name in ("sin", "cos", "tan"):
        _guard(f"sym_{name}", getattr(math, name), _is_finite)
    for name in ("sinh", "cosh"):
        _guard(f"sym_{name}", getattr(math, name), lambda a: True, _is_finite)
    for name, function in (("floor", math.floor), ("ceil", math.ceil), ("trunc", math.trunc), ("round", round)):
        _guard(name, function, _is_rounded_to_a_word)


def _is_finite(number: Any) -> bool:
    return not _is_of_floats(number) or bool(number >= -_LARGEST and number <= _LARGEST)


def _is_rounded_to_a_word(number: Any, digits: Any = None) -> bool:
    return not _is_of_floats(number) or bool(number >= -_WORD and number <= _WORD)


def _is_of_floats(number: Any) -> bool:
    """Whether a float that a program is called with is in it, not only integers and sizes."""
    return isinstance(number, torch.SymFloat) and bool(_floats(number.node))


def _guard(
    name: str, function: Callable[..., Any], accepts: Callable[..., bool], gives: Callable[[Any], bool] | None = None
) -> None:
    """Ask, where a symbol's method ``name`` is called, what ``accepts`` of its numbers, and ``gives`` of its result."""
    compute_any = getattr(SymNode, name)

    @functools.wraps(compute_any)
    def compute(self: Any, *others: Any) -> Any:
        nodes = [node for node in (self, *others) if isinstance(node, SymNode)]
        if not _guards(nodes):
            return compute_any(self, *others)
        if accepts(*map(_value, (self, *others))):
            result = compute_any(self, *others)
            if gives is None or gives(_value(result)):
                return result
        numbers = [_hint(node) for node in (self, *others)]
        return _node(self, function(*numbers))

    setattr(SymNode, name, compute)


_CANCELS = math.sqrt(1 / sys.float_info.epsilon)
"""A sum by which its terms are greater than this has less than half of the digits right."""


def _guard_cancellation() -> None:
    """Guard on sums of floats, which torch writes in another order, not to be what rounding left of their terms.

    ``(k + 1e16) - 1e16`` is a multiple of 2 in Python and ``k`` in torch, ``k + 0.0`` is never -0.0.
    """

    def guard(name: str, function: Callable[..., Any], sums: bool = True) -> None:
        add_any = getattr(SymNode, name)

        @functools.wraps(add_any)
        def add(self: Any, other: Any) -> Any:
            result = add_any(self, other)
            terms = (self, other)
            if float not in (self.pytype, other.pytype) or not _guards(terms):
                return result
            if not _loses_floats(terms, result) and (
                not sums or _keeps_order(terms, result) or _is_left(terms, result)
            ):
                return result
            return _node(self, function(*map(_hint, terms)))

        setattr(SymNode, name, add)

    guard("add", operator.add)
    guard("sub", operator.sub)
    guard("mul", operator.mul, sums=False)


def _keeps_order(terms: Iterable[Any], result: Any) -> bool:
    """Whether the expression of a sum has its two terms, of which the second may be subtracted."""
    first, second = (node.expr for node in terms)
    found = result.expr
    return found.is_Add and set(found.args) in ({first, second}, {first, -second})


def _loses_floats(terms: Iterable[Any], result: Any) -> bool:
    """Whether a float that may vary is in one of the terms and not in the result, as in ``k - k`` and ``k * 0.0``."""
    return bool(_floats(*terms) - _floats(result))


def _floats(*nodes: Any) -> set[Any]:
    return {s for node in nodes for s in node.expr.free_symbols if symbol_is_type(s, SymT.FLOAT)}


def _is_left(terms: Iterable[Any], result: Any) -> bool:
    """Whether a sum is none of those, which is guarded; sums of integers and sizes are not asked about."""
    one, other, found = map(_value, (*terms, result))
    if not _is_of_floats(found):
        return True
    return bool(found != 0) and bool(abs(one) + abs(other) <= abs(found) * _CANCELS)


_INT64 = torch.iinfo(torch.int64)
_SMALL = 2**31
"""Integers up to here are guarded to be so where that says enough of what is computed from them."""


def _guard_words() -> None:
    """Guard on results of integers to have the 64 bits that they have in a graph: Python's have as many as it takes."""

    def guard(name: str, function: Callable[..., Any]) -> None:
        compute_any = getattr(SymNode, name)

        @functools.wraps(compute_any)
        def compute(self: Any, other: Any) -> Any:
            terms = (self, other)
            if not _guards(terms):
                return compute_any(self, other)
            if name != "pow_by_natural" or self.is_constant() or other.is_constant():
                result = compute_any(self, other)
                if result.pytype is not int or result.is_constant() or _has_64_bits(result):
                    return result
            return _node(self, function(*map(_hint, terms)))

        setattr(SymNode, name, compute)

    for name in ("add", "sub", "mul", "lshift"):
        guard(name, getattr(operator, name))
    guard("pow_by_natural", operator.pow)


def _has_64_bits(node: Any) -> bool:
    """Whether an integer computed from those that a call is given fits, which is guarded; sizes are not asked about."""
    expr, env = node.expr, node.shape_env
    symbols = list(expr.free_symbols)
    given = [s for s in symbols if not isinstance(env.var_to_sources.get(s, [None])[0], TensorPropertySource)]
    if not given:
        return True
    if len(given) == len(symbols):
        within = bound_sympy(expr, {s: ValueRanges(-_SMALL, _SMALL) for s in symbols})
        if within.lower >= _INT64.min and within.upper <= _INT64.max:
            limits = [limit for s in symbols for limit in (sympy.Ge(s, -_SMALL), sympy.Le(s, _SMALL))]
            if all(env.evaluate_expr(limit) for limit in limits):
                return True
    value = _value(node)
    return bool(value >= _INT64.min) and bool(value <= _INT64.max)


def _guards(nodes: Iterable[Any]) -> bool:
    """Whether a trace for Lamina computes with these numbers, all of which are known now."""
    return get_proxy_mode() is None and all(node.has_hint() for node in nodes) and traces_for_lamina()


def _value(node: Any) -> Any:
    """What a node of a symbol stands for: a number, or a symbol that compares as one, with a guard."""
    if not isinstance(node, SymNode):
        return node
    if node.is_constant():
        return node.constant
    made: Any = torch.SymFloat if node.pytype is float else torch.SymInt
    return made(node)


def _hint(node: Any) -> Any:
    return _constant(node).hint if isinstance(node, SymNode) else node


def _node(like: Any, number: Any) -> Any:
    return like.wrap_int(number) if type(number) is int else like.wrap_float(float(number))
