"""From torch's symbolic integers to index expressions."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import sympy
import torch

from lamina.ir.index import Expr, Size, as_expr, ceildiv
from lamina.lower.torch_private import is_one, lowest
from lamina.lower.values import TensorValue

__all__ = ["LIMITS", "SizeFloat", "UnknownSize", "expr_of", "leaves_in", "stride_of"]

LIMITS = ("Min", "Max", "Abs")
"""Limits: classes of integers that no index expression holds and that a region is given as it is a symbol."""


@dataclass(frozen=True, slots=True)
class SizeFloat:
    """A float computed from sizes: the scalar operation ``op`` of the op table on sizes, numbers and such floats.

    A float that the region is given is the operation "value" of a tensor of float64 with one element.
    """

    op: str
    operands: tuple[Expr | SizeFloat | TensorValue | int | float, ...]

    def _needed(self, *_: object) -> Any:
        """A rule that computes with the number itself, or chooses by it, does not take one that only a run tells."""
        raise UnknownSize("a float that is known only at run time")

    __float__ = __int__ = __bool__ = __round__ = _needed
    __lt__ = __le__ = __gt__ = __ge__ = _needed
    __neg__ = __abs__ = __add__ = __radd__ = __sub__ = __rsub__ = _needed
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _needed


class UnknownSize(Exception):
    """A symbolic size that index expressions cannot hold; its operation becomes a library call."""


def expr_of(value: int | torch.SymInt | Expr) -> Expr:
    """The integer as an ``Expr``; raises ``UnknownSize`` for forms that none holds.

    The least or the greatest of several integers, and one without its sign, is a size of its own, which a region can
    only use if it is given it.

    What is known to be 1 is 1, so that what it is the size of is broadcast; as a factor too, so that strides agree.

    A symbol is at least what its environment proves: sizes are at least zero, other integers may be negative.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, torch.SymInt):
        return _convert(value.node.expr, value.node.shape_env)
    return as_expr(int(value))


def stride_of(value: int | torch.SymInt) -> Expr:
    """A stride as an ``Expr``. ``Max(1, n)``, a size that counts as one where it is zero, is taken as ``n``.

    The two differ only for a tensor without elements, in which no stride reaches memory.
    """
    if isinstance(value, torch.SymInt):
        return _convert(value.node.expr.replace(_is_count, _counted), value.node.shape_env)
    return as_expr(int(value))


def _is_count(e: Any) -> bool:
    return type(e).__name__ == "Max" and len(e.args) == 2 and e.args[0] == 1


def _counted(e: Any) -> Any:
    return e.args[1]


def _convert(e: Any, env: Any) -> Expr:
    if isinstance(e, sympy.Integer | int):
        return as_expr(int(e))
    if isinstance(e, sympy.Symbol):
        return as_expr(Size(e.name, lowest(e, env)))
    if is_one(e, env):
        return as_expr(1)
    if isinstance(e, sympy.Add):
        total = as_expr(0)
        for arg in e.args:
            total = total + _convert(arg, env)
        return total
    if isinstance(e, sympy.Mul):
        total = as_expr(1)
        for arg in e.args:
            total = total * _convert(arg, env)
        return total
    if isinstance(e, sympy.Pow) and e.args[1].is_Integer and int(e.args[1]) > 0:
        total = as_expr(1)
        for _ in range(int(e.args[1])):
            total = total * _convert(e.args[0], env)
        return total
    return _quotient(e, env)


def _quotient(e: Any, env: Any) -> Expr:
    kind = type(e).__name__
    if kind == "CleanDiv":  # of sizes: it leaves no remainder where it is reached
        return _convert(e.args[0], env) // _convert(e.args[1], env)
    if kind == "FloorDiv":
        return _convert(e.args[0], env) // _divisor(e.args[1], env)
    if kind == "CeilDiv":
        return ceildiv(_convert(e.args[0], env), _divisor(e.args[1], env))
    if kind in ("Mod", "PythonMod"):
        return _convert(e.args[0], env) % _divisor(e.args[1], env)
    if kind == "ModularIndexing":
        return (_convert(e.args[0], env) // _divisor(e.args[1], env)) % _divisor(e.args[2], env)
    if kind in LIMITS:
        return as_expr(_limit(e, env))
    raise UnknownSize(f"{kind} in {e}")


def _limit(e: Any, env: Any) -> Size:
    """A limit of integers as one that the region must be given, called after its text."""
    lows = [_lowest(arg, env) for arg in e.args]
    proved = [low for low in lows if low is not None]
    low: int | None
    if type(e).__name__ == "Abs":
        low = 0
    elif type(e).__name__ == "Max":
        low = max(proved, default=None)
    else:
        low = min(proved) if len(proved) == len(lows) else None
    return Size(f"{type(e).__name__.lower()}_{sha256(str(e).encode()).hexdigest()[:10]}", low)


def _lowest(e: Any, env: Any) -> int | None:
    """The least value of an integer as far as its index expression tells; ``None`` if it has none."""
    try:
        return _convert(e, env).bounds()[0]
    except UnknownSize:
        return None


def leaves_in(value: Any) -> dict[str, Any]:
    """What a number, or a tensor's sizes and strides, is made of, by name: symbols, and limits, which count as such.

    Of a float they are those of the integers that it is computed from. A limit is the least or the greatest of several
    integers, or one without its sign.
    """
    if isinstance(value, torch.Tensor):
        parts = [*value.shape, value.storage_offset(), *(_Stride(s) for s in value.stride())]
    else:
        parts = list(value) if isinstance(value, tuple | list) else [value]
    found: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, torch.Tensor | tuple | list):
            found |= leaves_in(part)
        number = part.value if isinstance(part, _Stride) else part
        if not isinstance(number, torch.SymInt | torch.SymFloat):
            continue
        e = number.node.expr
        stack = [e.replace(_is_count, _counted) if isinstance(part, _Stride) else e]
        while stack:
            e = stack.pop()
            if isinstance(e, sympy.Symbol):
                found |= {e.name: e} if e.is_integer else {}
            elif type(e).__name__ in LIMITS and e.is_integer:
                found[_limit(e, number.node.shape_env).name] = e
            else:
                stack += getattr(e, "args", ())
    return found


@dataclass(frozen=True, slots=True)
class _Stride:
    """A stride among sizes."""

    value: Any


def _divisor(e: Any, env: Any) -> Expr:
    """What an integer is divided by: a number, or one that is known to be positive."""
    den = _convert(e, env)
    low = den.bounds()[0]
    if den == 0 or not (den.is_int or (low is not None and low > 0)):
        raise UnknownSize(f"a divisor that may be zero or negative, {e}")
    return den
