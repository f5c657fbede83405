"""Whether the checks of a nest hold of integers that are made up, decided from the ranges of all that they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Axis, Expr
from lamina.ir.loops import Check, Compute, Constant, Equation, Index, Load, Nest

__all__ = ["checks_hold"]

_Range = tuple[int, int]
"""The least and the greatest value; truth values are 0 and 1."""


def checks_hold(nest: Nest, highest: int) -> bool:
    """Whether every check of the nest holds where loaded integers are in ``[0, highest)``.

    True only where the ranges prove it: what is computed of floats, of sizes that are not known or by an operation
    without a rule here proves nothing.
    """
    extents = {a.name: a.extent.const for a in nest.axes if a.extent.is_int}
    known: dict[str, _Range] = {}
    for eqn in nest.body:
        if isinstance(eqn, Check):
            if known.get(eqn.cond, (0, 1))[0] < 1:
                return False
        elif (found := _range(eqn, known, extents, highest)) is not None:
            known[eqn.out] = found  # type: ignore[union-attr]
    return True


def _range(eqn: Equation, known: Mapping[str, _Range], extents: Mapping[str, int], highest: int) -> _Range | None:
    """The range of an equation's value, ``None`` where nothing is known of it."""
    if isinstance(eqn, Load):
        return _of_load(eqn, highest)
    if isinstance(eqn, Constant):
        about = DTYPES[eqn.dtype]
        return (int(eqn.value),) * 2 if about.is_integer or about.kind == "bool" else None
    if isinstance(eqn, Index):
        return _of_index(eqn.expr, extents)
    if not isinstance(eqn, Compute) or DTYPES[eqn.dtype].is_float:
        return None
    if eqn.op == "where":
        return _of_where([known.get(name) for name in eqn.ins])
    ins = [known[name] for name in eqn.ins if name in known]
    if len(ins) < len(eqn.ins):
        # One side of a conjunction or an alternative may decide it.
        sides = ins[:1] or [(0, 1)]
        return _RULES[eqn.op](sides[0], (0, 1)) if eqn.op in ("and", "or") and eqn.dtype == "bool" else None
    if eqn.op in ("cast", "identity"):
        return ins[0] if _fits(ins[0], eqn.dtype) else None
    if eqn.op == "not":
        return (1 - ins[0][1], 1 - ins[0][0]) if eqn.dtype == "bool" else None
    if eqn.op not in _RULES or (eqn.op in ("and", "or") and eqn.dtype != "bool"):
        return None
    found = _RULES[eqn.op](*ins)
    return found if _fits(found, eqn.dtype) else None


def _of_load(eqn: Load, highest: int) -> _Range | None:
    about = DTYPES[eqn.dtype]
    if about.kind == "bool":
        return 0, 1
    if not about.is_integer:
        return None
    least, most = 0, max(highest - 1, 0)
    if eqn.mask is not None:
        least, most = min(least, int(eqn.fill)), max(most, int(eqn.fill))
    return least, most


def _of_index(expr: Expr, extents: Mapping[str, int]) -> _Range | None:
    """The range of a sum of axes with constant factors."""
    least = most = expr.const
    for mono, factor in expr.terms:
        if len(mono) != 1 or not isinstance(mono[0], Axis) or mono[0].name not in extents:
            return None
        end = factor * (extents[mono[0].name] - 1)
        least, most = least + min(end, 0), most + max(end, 0)
    return least, most


def _of_where(ins: list[_Range | None]) -> _Range | None:
    cond, one, other = ins
    if cond is not None and cond[0] == cond[1]:
        return one if cond[0] else other
    return (min(one[0], other[0]), max(one[1], other[1])) if one is not None and other is not None else None


def _fits(found: _Range, dtype: str) -> bool:
    """Whether an integer type holds the range, so that nothing wraps around."""
    about = DTYPES[dtype]
    if about.kind == "bool":
        return found[0] >= 0 and found[1] <= 1
    bits = 8 * about.size
    low = 0 if dtype.startswith("u") else -(1 << bits - 1)
    return low <= found[0] and found[1] < low + (1 << bits)


def _truth(sure: bool, possible: bool) -> _Range:
    return int(sure), int(possible)


_RULES: dict[str, Callable[[_Range, _Range], _Range]] = {
    "and": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "or": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "lt": lambda a, b: _truth(a[1] < b[0], a[0] < b[1]),
    "le": lambda a, b: _truth(a[1] <= b[0], a[0] <= b[1]),
    "gt": lambda a, b: _truth(a[0] > b[1], a[1] > b[0]),
    "ge": lambda a, b: _truth(a[0] >= b[1], a[1] >= b[0]),
    "eq": lambda a, b: _truth(a[0] == a[1] == b[0] == b[1], a[0] <= b[1] and b[0] <= a[1]),
    "ne": lambda a, b: _truth(a[1] < b[0] or b[1] < a[0], not a[0] == a[1] == b[0] == b[1]),
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
}
"""The range of an operation on two ranges, for values that do not depend on each other or do."""
