"""Coarsening: each point of an axis does the work of several, which lie a part of the axis apart or side by side.

Rotary embeddings combine the two halves of a row, so their loops run over half a row; the norm before them runs over
whole rows. Coarsened by two, the norm reads both halves at each point, and the two become one nest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Axis, Expr, as_expr
from lamina.ir.loops import (
    Compute,
    Constant,
    Equation,
    Index,
    Load,
    Nest,
    Random,
    Reduce,
    Scan,
    Store,
    axes_of_values,
    defined,
    operands,
)
from lamina.ir.ops import JOINS
from lamina.ir.use_def import UseDef
from lamina.schedule.simplify import rename

__all__ = ["coarsen", "coarsenable"]

_MOST = 4
"""Points of an axis that one point does the work of at most: the body grows as often."""
_SHORTEST = 8
"""Points left that are still worth a loop."""
_BEST = {"argmax": "maximum", "argmin": "minimum"}


def coarsenable(nest: Nest, extents: set[int]) -> list[tuple[Axis, int]]:
    """Axes of the nest that other loops run over a part of, with the number of parts."""
    found: list[tuple[Axis, int]] = []
    for axis in nest.axes:
        if axis.extent.is_int and axis.extent.const not in extents:
            n = axis.extent.const
            found += [
                (axis, p) for p in range(2, _MOST + 1) if n % p == 0 and n // p >= _SHORTEST and n // p in extents
            ]
    return found


def coarsen(nest: Nest, axis: Axis, parts: int, near: bool = False) -> Nest | None:
    """The nest over a part of ``axis``, every point doing the work of ``parts``; ``None`` where that cannot be.

    They lie a part of the axis apart, or are neighbours (``near``).
    Reductions over the axis join the points' values first; 16-bit ones would round on the way and are refused.
    """
    length = axis.extent.const // parts
    short = Axis(axis.name, as_expr(length))
    values = axes_of_values(nest)
    dtypes = UseDef(nest.body).dtypes
    copies: dict[str, list[str]] = {}
    body: list[Equation] = []
    taken = set(dtypes)

    def fresh(name: str) -> str:
        made = next(m for k in range(len(taken) + 2) if (m := f"{name}_{k}") not in taken)
        taken.add(made)
        return made

    def copy(eqn: Equation, part: int) -> Equation:
        names = {n: copies[n][part] for n in (*operands(eqn), *defined(eqn)) if n in copies}
        place: Expr = as_expr(short) * parts + part if near else as_expr(short) + part * length
        return rename(eqn, names, {axis: place})

    for eqn in nest.body:
        if isinstance(eqn, Scan):
            return None
        if isinstance(eqn, Reduce) and eqn.op in _BEST and eqn.axes == (axis.name,) and length == 1:
            body += _best(eqn, copies.get(eqn.value, [eqn.value] * parts), dtypes[eqn.value], fresh)
        elif isinstance(eqn, Reduce) and axis.name in eqn.axes:
            if eqn.op not in JOINS or (eqn.op in ("sum", "prod") and DTYPES[dtypes[eqn.value]].size < 4):
                return None
            value = eqn.value
            for part in range(1, parts):
                joined = fresh(f"{eqn.outs[0]}_in")
                other = copies.get(eqn.value, [eqn.value] * parts)[part]
                body.append(Compute(joined, JOINS[eqn.op], (value, other), dtypes[eqn.value], eqn.origin))
                value = joined
            body.append(replace(eqn, value=value))
        elif axis.name in _axes(eqn) or any(axis.name in values[n] for n in operands(eqn)):
            for name in defined(eqn):
                copies[name] = [name, *(fresh(name) for _ in range(parts - 1))]
            body += [copy(eqn, part) for part in range(parts)]
        else:
            body.append(eqn)
    return Nest(nest.name, tuple(short if a == axis else a for a in nest.axes), tuple(body))


def _best(eqn: Reduce, values: Sequence[str], dtype: str, fresh: Callable[[str], str]) -> Iterator[Equation]:
    """The first of ``values`` that is their maximum or minimum, or no number, by its number among them."""
    (out,), best = eqn.outs, values[0]
    for value in values[1:]:
        joined = fresh(f"{out}_in")
        yield Compute(joined, _BEST[eqn.op], (best, value), dtype, eqn.origin)
        best = joined
    at = fresh(f"{out}_at")
    yield Constant(at, len(values) - 1, "int32", eqn.origin)
    for number, value in reversed(list(enumerate(values[:-1]))):
        found, here, chosen = fresh(f"{out}_is"), fresh(f"{out}_at"), fresh(f"{out}_at")
        yield Compute(found, "eq", (value, best), "bool", eqn.origin)
        if DTYPES[dtype].is_float:
            equal, empty = found, fresh(f"{out}_nan")
            found = fresh(f"{out}_is")
            yield Compute(empty, "isnan", (value,), "bool", eqn.origin)
            yield Compute(found, "or", (equal, empty), "bool", eqn.origin)
        yield Constant(here, number, "int32", eqn.origin)
        yield Compute(chosen, "where", (found, here, at), "int32", eqn.origin)
        at = chosen
    yield Compute(out, "cast", (at,), eqn.dtype, eqn.origin)


def _axes(eqn: Equation) -> frozenset[str]:
    if isinstance(eqn, Load | Store):
        return frozenset(a for e in eqn.index for a in e.axes())
    if isinstance(eqn, Index):
        return eqn.expr.axes()
    return eqn.index.axes() if isinstance(eqn, Random) else frozenset()
