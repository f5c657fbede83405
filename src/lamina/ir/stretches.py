"""Accesses whose places go on one by one but for a jump after every so many points: rolled rows, pieces of rows."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.ir.index import Atom, Axis, Div, Expr, Mod

__all__ = ["Jumps", "jumps"]

_MOST = 2
"""Kinds of jumps at most: for each a division is made for every vector."""


@dataclass(frozen=True, slots=True)
class Jumps:
    """Places may jump where ``number``, which grows by one from point to point, becomes a multiple of ``length``."""

    number: Expr
    length: int


def jumps(expr: Expr, axis: Axis, least: int) -> tuple[Jumps, ...]:
    """Where places of ``expr`` along ``axis`` do not go on by one, each kind of jump every ``least`` points or more.

    Nothing where it is otherwise, or where they go on by one throughout. What varies are quotients, remainders and the
    axis itself, of which the factors but for the quotients' add up to one.
    """
    found: dict[Jumps, None] = {}
    steps = 0
    for mono, coef in expr.terms:
        if axis.name not in Expr(((mono, coef),), 0).axes():
            continue
        (atom, *more) = mono
        if more:
            return ()
        if not isinstance(atom, Div):
            steps += coef
        if atom == axis:
            continue
        jump = _jump(atom, axis, least)
        if jump is None:
            return ()
        found[jump] = None
    return tuple(found) if steps == 1 and len(found) <= _MOST else ()


def _jump(atom: Atom, axis: Axis, least: int) -> Jumps | None:
    if not isinstance(atom, Div | Mod) or not atom.den.is_int or atom.den.const < least:
        return None
    if atom.num.coefficient(axis) != 1:
        return None
    return Jumps(atom.num, atom.den.const)
