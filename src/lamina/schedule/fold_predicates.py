"""Predicate folding: conditions on indices that the ranges of their axes decide, and what depends on them.

Where an axis was cut or coarsened, a condition that told its parts apart is true in one part and false in another. It
becomes a constant, and masks, choices and loads that depend on it are simplified.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Expr, as_expr
from lamina.ir.loops import Compute, Constant, Equation, Index, Load, Nest, Origin, Store
from lamina.schedule.accesses import additions
from lamina.schedule.simplify import rename, simplify

__all__ = ["fold_predicates", "without_known_predicates"]


def fold_predicates(body: Sequence[Equation], zeros: bool = False) -> list[Equation]:
    """The body without what is known where it is written: conditions on indices, choices and loads by them.

    With ``zeros`` sums with zeros go as well. (A negative zero to which no zero is added stays one.)
    """
    known: dict[str, Constant] = {}
    places: dict[str, Expr] = {}
    names: dict[str, str] = {}
    result: list[Equation] = []
    for eqn in body:
        eqn = rename(eqn, names) if names else eqn
        if isinstance(eqn, Load | Store) and eqn.mask in known:
            if known[eqn.mask].value:
                eqn = replace(eqn, mask=None)
            elif isinstance(eqn, Load):
                eqn = _constant(eqn.out, eqn.fill, eqn.dtype, eqn.origin)
            else:
                continue
        elif isinstance(eqn, Compute):
            found = _value(eqn, known, places, zeros)
            if isinstance(found, str):
                names[eqn.out] = found
                continue
            eqn = eqn if found is None else found
        if isinstance(eqn, Index):
            places[eqn.out] = eqn.expr
        elif isinstance(eqn, Constant):
            known[eqn.out] = eqn
            if DTYPES[eqn.dtype].is_integer:
                places[eqn.out] = as_expr(int(eqn.value))
        result.append(eqn)
    return result


def without_known_predicates(nest: Nest, numerics: str) -> Nest:
    """The nest without masks that are known, as an axis was cut or coarsened where they begin; see ``additions``."""
    if not any(isinstance(e, Load) and e.mask is not None for e in nest.body):
        return nest
    known = Nest(nest.name, nest.axes, simplify(fold_predicates(nest.body), numerics))
    return known if additions(known) == additions(nest) else nest


def _value(
    eqn: Compute, known: Mapping[str, Constant], places: Mapping[str, Expr], zeros: bool
) -> Constant | str | None:
    """What an operation gives: a number, another value by its name, or nothing that is known."""
    first, *others = eqn.ins
    if eqn.op in ("lt", "ge") and first in places and others[0] in places:
        under = _less(places[first], places[others[0]])
        return None if under is None else Constant(eqn.out, under == (eqn.op == "lt"), "bool", eqn.origin)
    if eqn.op in ("eq", "ne") and first in places and others[0] in places:
        apart = _differ(places[first], places[others[0]])
        return None if apart is None else Constant(eqn.out, apart == (eqn.op == "ne"), "bool", eqn.origin)
    if eqn.op == "isnan" and first in known:
        return Constant(eqn.out, math.isnan(known[first].value), "bool", eqn.origin)
    if eqn.op in ("and", "or") and eqn.dtype == "bool":
        for one, other in ((first, others[0]), (others[0], first)):
            if one in known:
                return other if known[one].value == (eqn.op == "and") else one
    if eqn.op == "where":
        if first in known:
            return others[0] if known[first].value else others[1]
        one, other = (repr(known[v].value) if v in known else v for v in others)
        return others[0] if one == other else None
    if eqn.op == "cast" and first in known:
        value = known[first].value
        if value == 0 or (math.isinf(value) and DTYPES[eqn.dtype].is_float):
            return _constant(eqn.out, value, eqn.dtype, eqn.origin)
    if zeros and eqn.op == "add":
        for one, other in ((first, others[0]), (others[0], first)):
            if one in known and known[one].value == 0:
                return other
    return None


def _constant(name: str, value: float | bool, dtype: str, origin: Origin) -> Constant:
    kind = DTYPES[dtype].kind
    return Constant(name, {"float": float, "bool": bool}.get(kind, int)(value), dtype, origin)


def _differ(one: Expr, other: Expr) -> bool | None:
    """Whether two places differ, where that is certain."""
    distance = one - other
    if not distance.terms:
        return distance.const != 0
    return True if one.below(other) or other.below(one) else None


def _less(one: Expr, other: Expr) -> bool | None:
    """Whether ``one < other``, where that is certain."""
    if one.below(other):
        return True
    return False if (one - other).nonnegative() else None
