"""Cleans the body of a nest: one load per element, common values once, no needless casts, nothing dead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Atom, Expr, Loaded, as_expr
from lamina.ir.loops import (
    Check,
    Compute,
    Constant,
    Equation,
    Index,
    Load,
    Random,
    Reduce,
    Scan,
    Store,
    defined,
    operands,
)
from lamina.schedule.masked_loads import without_needless_masks
from lamina.schedule.nest_parts import live_equations

__all__ = ["rename", "simplify"]


_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
_CHOOSE = ("max", "min", "maximum", "minimum", "where")


def simplify(body: Sequence[Equation], numerics: str) -> tuple[Equation, ...]:
    """An equivalent body: duplicates merged, casts cancelled (with numerics "fast" also a rounding to a half type and
    back), equations nobody needs removed. Loads after a store to the same buffer are kept apart.

    Two values that are compared are rounded as they are in memory: an element is the largest of its row, or as large
    as the k-th, only where both sides are the numbers that were stored. So are the values of which one of two that are
    compared was chosen, such as those of which it is the greatest so far.
    """
    body = without_needless_masks(body)
    same: dict[Any, str] = {}
    names: dict[str, str] = {}
    rounded: dict[str, str] = {}
    made: dict[str, Equation] = {}
    kept: list[Equation] = []
    stored: dict[str, int] = {}
    compared = _compared(body)
    for eqn in body:
        known = names if compared.isdisjoint(defined(eqn)) else rounded
        eqn = rename(eqn, known) if known else eqn
        numbers = _numbers(eqn, made)
        eqn = rename(eqn, {}, numbers) if numbers else eqn
        if isinstance(eqn, Store):
            stored[eqn.buffer] = stored.get(eqn.buffer, 0) + 1
            kept.append(eqn)
            continue
        if isinstance(eqn, Compute) and eqn.op == "cast":
            source = _cast_source(eqn, made, numerics)
            if source is not None:
                names[eqn.out] = source
                if not _rounds(eqn, made):
                    rounded[eqn.out] = rounded.get(source, source)
                    continue
        key = _key(eqn, stored)
        if key is not None:
            found = same.get(key)
            if found is not None:
                rounded[eqn.out] = found  # type: ignore[union-attr]
                names.setdefault(eqn.out, found)  # type: ignore[union-attr]
                continue
            same[key] = eqn.out  # type: ignore[union-attr]
        for name in defined(eqn):
            made[name] = eqn
        kept.append(eqn)
    return live_equations(kept)


def _compared(body: Sequence[Equation]) -> set[str]:
    """Results of comparisons of two values, not of one with a number, and of what chooses the values compared."""
    numbers = {eqn.out for eqn in body if isinstance(eqn, Constant)}
    found: set[str] = set()
    wanted: set[str] = set()
    for eqn in reversed(body):
        two = isinstance(eqn, Compute) and eqn.op in _COMPARE and numbers.isdisjoint(eqn.ins)
        chooses = isinstance(eqn, Compute | Reduce | Scan) and eqn.op in _CHOOSE
        if two or (chooses and not wanted.isdisjoint(defined(eqn))):
            found.update(defined(eqn))
            wanted.update(operands(eqn))
    return found


def _numbers(eqn: Equation, made: dict[str, Equation]) -> dict[Atom, Any]:
    """Values among an equation's indices that are known numbers; constants have no name in generated code."""
    if isinstance(eqn, Load | Store):
        places = eqn.index
    elif isinstance(eqn, Index | Random):
        places = (eqn.expr if isinstance(eqn, Index) else eqn.index,)
    else:
        return {}
    found: dict[Atom, Any] = {}
    for atom in (atom for expr in places if expr.terms for atom in expr.atoms()):
        source = made.get(atom.name) if isinstance(atom, Loaded) else None
        if isinstance(source, Constant):
            found[atom] = int(source.value)
    return found


def _key(eqn: Equation, stored: dict[str, int]) -> Any:
    if isinstance(eqn, Compute):
        return (eqn.op, eqn.ins, eqn.dtype)
    if isinstance(eqn, Load):
        return ("load", eqn.buffer, eqn.index, eqn.mask, eqn.fill, stored.get(eqn.buffer, 0))
    if isinstance(eqn, Constant):
        return ("constant", repr(eqn.value), eqn.dtype)
    if isinstance(eqn, Index):
        return ("index", eqn.expr, eqn.dtype)
    if isinstance(eqn, Random):
        return ("random", eqn.seed, eqn.stream, eqn.index, eqn.dtype)
    return None


def _rounds(eqn: Compute, made: dict[str, Equation]) -> bool:
    """Whether a cast takes back one to a half type, which rounded."""
    source = made[eqn.ins[0]]
    rounding = isinstance(source, Compute) and source.op == "cast" and source.dtype in ("bfloat16", "float16")
    return rounding and eqn.dtype == "float32"


def _cast_source(eqn: Compute, made: dict[str, Equation], numerics: str) -> str | None:
    """The value that a cast may be replaced by, if any."""
    source = made.get(eqn.ins[0])
    if source is None:
        return None
    dtype = getattr(source, "dtype", None)
    if dtype == eqn.dtype:
        return eqn.ins[0]
    if not (isinstance(source, Compute) and source.op == "cast"):
        return None
    inner = made.get(source.ins[0])
    inner_dtype = getattr(inner, "dtype", None)
    if inner_dtype != eqn.dtype or dtype is None:
        return None
    halves = dtype in ("bfloat16", "float16")
    if numerics == "fast" and halves and eqn.dtype == "float32":
        return source.ins[0]
    wider = DTYPES[dtype].size > DTYPES[eqn.dtype].size and DTYPES[dtype].kind == DTYPES[eqn.dtype].kind
    return source.ins[0] if wider else None


def _index(index: tuple[Expr, ...], names: dict[str, str], axes: dict[Atom, Any]) -> tuple[Expr, ...]:
    result = []
    for e in index:
        if e.terms:
            mapping: dict[Atom, Expr | int] = dict(axes)
            for atom in e.atoms():
                if isinstance(atom, Loaded) and atom.name in names:
                    mapping[atom] = as_expr(Loaded(names[atom.name], atom.bound))
            e = e.substitute(mapping)
        result.append(e)
    return tuple(result)


def rename(eqn: Equation, names: dict[str, str], axes: dict[Atom, Any] | None = None) -> Equation:
    """The equation with values renamed and, if given, axes substituted in its indices.

    Reduced and scanned axes are named in the equation itself: they are left to the caller.
    """
    get = names.get
    axes = axes or {}
    if isinstance(eqn, Compute):
        return Compute(get(eqn.out, eqn.out), eqn.op, tuple([get(i, i) for i in eqn.ins]), eqn.dtype, eqn.origin)
    if isinstance(eqn, Load):
        mask = get(eqn.mask, eqn.mask) if eqn.mask else None
        index = _index(eqn.index, names, axes)
        return Load(get(eqn.out, eqn.out), eqn.buffer, index, eqn.dtype, mask, eqn.fill, eqn.origin)
    if isinstance(eqn, Constant):
        return Constant(get(eqn.out, eqn.out), eqn.value, eqn.dtype, eqn.origin)
    if isinstance(eqn, Index):
        return Index(get(eqn.out, eqn.out), _index((eqn.expr,), names, axes)[0], eqn.dtype, eqn.origin)
    if isinstance(eqn, Random):
        index = _index((eqn.index,), names, axes)
        return Random(get(eqn.out, eqn.out), get(eqn.seed, eqn.seed), eqn.stream, index[0], eqn.dtype, eqn.origin)
    if isinstance(eqn, Reduce):
        outs = tuple([get(o, o) for o in eqn.outs])
        return Reduce(outs, eqn.op, get(eqn.value, eqn.value), eqn.axes, eqn.dtype, eqn.origin)
    if isinstance(eqn, Scan):
        value = get(eqn.value, eqn.value)
        return Scan(get(eqn.out, eqn.out), eqn.op, value, eqn.axis, eqn.dtype, eqn.reverse, eqn.origin)
    if isinstance(eqn, Store):
        mask = get(eqn.mask, eqn.mask) if eqn.mask else None
        index = _index(eqn.index, names, axes)
        return Store(eqn.buffer, index, get(eqn.value, eqn.value), eqn.mode, mask, eqn.origin)
    return Check(get(eqn.cond, eqn.cond), eqn.message, eqn.error, eqn.origin)
