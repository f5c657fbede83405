"""From torch's symbolic integers to index expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
import torch

from lamina.ir.index import Expr, Size, as_expr, ceildiv
from lamina.lower.torch_private import lowest

__all__ = ["SizeFloat", "UnknownSize", "expr_of", "stride_of"]


@dataclass(frozen=True, slots=True)
class SizeFloat:
    """A float computed from sizes: the scalar operation ``op`` of the op table on sizes, numbers and such floats."""

    op: str
    operands: tuple[Expr | SizeFloat | int | float, ...]


class UnknownSize(Exception):
    """A symbolic size that index expressions cannot hold; its operation becomes a library call."""


def expr_of(value: int | torch.SymInt | Expr) -> Expr:
    """The integer as an ``Expr``; raises ``UnknownSize`` for forms such as ``Max``.

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
    raise UnknownSize(f"{kind} in {e}")


def _divisor(e: Any, env: Any) -> Expr:
    """What an integer is divided by: a number, or one that is known to be positive."""
    den = _convert(e, env)
    low = den.bounds()[0]
    if den == 0 or not (den.is_int or (low is not None and low > 0)):
        raise UnknownSize(f"a divisor that may be zero or negative, {e}")
    return den
