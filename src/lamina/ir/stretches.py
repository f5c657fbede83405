"""Accesses whose places go on one by one but for a jump after every so many points: rolled rows, pieces of rows."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.ir.index import Atom, Axis, Div, Expr, Mod

__all__ = ["Stretches", "stretches"]


@dataclass(frozen=True, slots=True)
class Stretches:
    """Places go on by one from a point to the next but where ``number`` becomes a multiple of ``length``."""

    number: Expr
    length: int


def stretches(expr: Expr, axis: Axis, least: int) -> Stretches | None:
    """Where places of ``expr`` along ``axis`` jump, if stretches have ``least`` points or more; else ``None``.

    One remainder that grows by one, or the axis itself, and multiples of one quotient: nothing else varies. Two jumps
    are never nearer than a stretch, and no jump is by one.
    """
    found: Stretches | None = None
    steps = 0
    for mono, coef in expr.terms:
        if axis.name not in Expr(((mono, coef),), 0).axes():
            continue
        (atom, *more) = mono
        if more:
            return None
        if atom == axis or isinstance(atom, Mod):
            steps += coef
        if atom == axis:
            continue
        cut = _cut(atom, axis, least)
        if cut is None or (found is not None and cut != found):
            return None
        found = cut
    return found if steps == 1 else None


def _cut(atom: Atom, axis: Axis, least: int) -> Stretches | None:
    if not isinstance(atom, Div | Mod) or not atom.den.is_int or atom.den.const < least:
        return None
    if atom.num.coefficient(axis) != 1:
        return None
    return Stretches(atom.num, atom.den.const)
