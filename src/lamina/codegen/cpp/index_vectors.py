"""An index for all lanes of a vector at once where it follows no straight line: quotients and remainders."""

from __future__ import annotations

from lamina.codegen.cpp.expressions import index_text
from lamina.codegen.cpp.nest_analysis import fits_32
from lamina.ir.index import Atom, Axis, Div, Expr, Mod, as_expr, as_expr_atom

__all__ = ["grows_slowly", "index_vector"]

_MOST = 2**30
"""Coefficients and divisors below this keep products with 32-bit lanes free of overflow; larger ones are computed in
64 bits.
"""
_STEADY = 32
"""Elements from one place to the next from which on most vectors are at one place."""


def index_vector(expr: Expr, axis: str) -> str | None:
    """C++ of type ``vi32`` for ``expr``, which has no loaded places, along the vector axis.

    ``None`` where 32 bits do not do. Sums and products wrap around: only what is divided, and the whole, have to fit.
    """
    return _text(expr, axis) if _exact(expr, axis) else None


def _exact(expr: Expr, axis: str) -> bool:
    if not fits_32(expr) or any(abs(coef) >= _MOST for _, coef in expr.terms) or abs(expr.const) >= _MOST:
        return False
    return all(_divides(atom, axis) for mono, _ in expr.terms for atom in mono if axis in _axes(atom))


def _divides(atom: Atom, axis: str) -> bool:
    if not isinstance(atom, Div | Mod):
        return isinstance(atom, Axis)
    fixed = atom.den.is_int and 0 < atom.den.const < _MOST
    return fixed and atom.num.nonnegative() and _exact(atom.num, axis)


def _axes(atom: Atom) -> frozenset[str]:
    if isinstance(atom, Div | Mod):
        return atom.num.axes() | atom.den.axes()
    return as_expr(atom).axes()


def _text(expr: Expr, axis: str) -> str:
    def written(atom: Atom) -> str:
        if isinstance(atom, Div | Mod):
            if axis not in _axes(atom):
                return f"(int32)({index_text(as_expr_atom(atom), {})})"
            sign = "/" if isinstance(atom, Div) else "%"
            return f"(vi32)((vu32)({_text(atom.num, axis)}) {sign} {atom.den.const}u)"
        return f"(LANE + (int32)({axis}))" if atom.name == axis else f"(int32)({index_text(as_expr(atom), {})})"

    return expr.text(written)


def grows_slowly(expr: Expr, axis: str) -> bool:
    """Whether along the vector axis places never decrease, and stay the same for some vectors: one quotient's."""
    varying = [(mono, coef) for mono, coef in expr.terms if any(axis in _axes(atom) for atom in mono)]
    if len(varying) != 1 or len(varying[0][0]) != 1 or varying[0][1] < 0:
        return False
    (quotient,) = varying[0][0]
    if not isinstance(quotient, Div) or not quotient.den.is_int or not quotient.num.nonnegative():
        return False
    inside = [(mono, coef) for mono, coef in quotient.num.terms if any(axis in _axes(atom) for atom in mono)]
    if len(inside) != 1 or len(inside[0][0]) != 1 or not isinstance(inside[0][0][0], Axis):
        return False
    return 0 < inside[0][1] * _STEADY <= quotient.den.const
