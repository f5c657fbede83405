"""From torch's symbolic integers to index expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
import torch

from lamina.ir.index import Expr, Size, as_expr, ceildiv

__all__ = ["SizeFloat", "UnknownSize", "expr_of", "stride_of"]


@dataclass(frozen=True, slots=True)
class SizeFloat:
    """A float computed from sizes: the scalar operation ``op`` of the op table on sizes, numbers and such floats."""

    op: str
    operands: tuple[Expr | SizeFloat | int | float, ...]


class UnknownSize(Exception):
    """A symbolic size that index expressions cannot hold; its operation becomes a library call."""


def expr_of(value: int | torch.SymInt | Expr) -> Expr:
    """The size as an ``Expr``; raises ``UnknownSize`` for forms such as ``Max``."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, torch.SymInt):
        return _convert(value.node.expr)
    return as_expr(int(value))


def stride_of(value: int | torch.SymInt) -> Expr:
    """A stride as an ``Expr``. ``Max(1, n)``, a size that counts as one where it is zero, is taken as ``n``.

    The two differ only for a tensor without elements, in which no stride reaches memory.
    """
    if isinstance(value, torch.SymInt):
        return _convert(value.node.expr.replace(_is_count, _counted))
    return as_expr(int(value))


def _is_count(e: Any) -> bool:
    return type(e).__name__ == "Max" and len(e.args) == 2 and e.args[0] == 1


def _counted(e: Any) -> Any:
    return e.args[1]


def _convert(e: Any) -> Expr:
    if isinstance(e, sympy.Integer | int):
        return as_expr(int(e))
    if isinstance(e, sympy.Symbol):
        return as_expr(Size(e.name, 0 if e.is_positive is None else 1))
    if isinstance(e, sympy.Add):
        total = as_expr(0)
        for arg in e.args:
            total = total + _convert(arg)
        return total
    if isinstance(e, sympy.Mul):
        total = as_expr(1)
        for arg in e.args:
            total = total * _convert(arg)
        return total
    if isinstance(e, sympy.Pow) and e.args[1].is_Integer and int(e.args[1]) > 0:
        total = as_expr(1)
        for _ in range(int(e.args[1])):
            total = total * _convert(e.args[0])
        return total
    kind = type(e).__name__
    if kind in ("FloorDiv", "CleanDiv"):
        return _convert(e.args[0]) // _convert(e.args[1])
    if kind == "CeilDiv":
        return ceildiv(_convert(e.args[0]), _convert(e.args[1]))
    if kind in ("Mod", "PythonMod"):
        return _convert(e.args[0]) % _convert(e.args[1])
    if kind == "ModularIndexing":
        return (_convert(e.args[0]) // _convert(e.args[1])) % _convert(e.args[2])
    raise UnknownSize(f"{kind} in {e}")
