"""Periodic accesses: places along an axis that repeat, with an offset, after a few points, as in short rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import gcd, lcm

from lamina.ir.index import Atom, Axis, Div, Expr, Mod

__all__ = ["Periodic", "periodic"]

_MOST = 512
"""Points after which places go on at most."""


@dataclass(frozen=True, slots=True)
class Periodic:
    """``places[k]`` at point ``k`` of the first period, ``step`` more in each one after; ``rest`` is added to all."""

    places: tuple[int, ...]
    step: int
    rest: Expr

    @property
    def period(self) -> int:
        """After how many points places go on in the same way."""
        return len(self.places)

    def table(self, lanes: int) -> tuple[int, ...]:
        """The places of as many points as a vector that begins anywhere in a period has."""
        count = self.period + lanes - 1
        return tuple(self.places[k % self.period] + k // self.period * self.step for k in range(count))

    @property
    def fixed(self) -> bool:
        """Whether every period has the same places."""
        return self.step == 0

    @property
    def rises(self) -> bool:
        """Whether places never fall."""
        return all(before <= after for before, after in pairwise(self.table(2)))

    def span(self, lanes: int) -> int:
        """How many neighbouring elements hold those of any vector; of all, where every period has the same places."""
        table = self.table(lanes)
        parts = [table] if self.fixed else [table[k : k + lanes] for k in range(self.period)]
        return max(max(part) - min(part) for part in parts) + 1

    def distinct(self, points: int) -> int:
        """At most so many different places ``points`` points have."""
        return len(set(self.places)) * (1 if self.fixed else -(-points // self.period))


def periodic(expr: Expr, axis: Axis) -> Periodic | None:
    """The places of ``expr`` along ``axis``, where they repeat and are no straight line; else ``None``."""
    varying = [(mono, coef) for mono, coef in expr.terms if any(axis.name in _axes(atom) for atom in mono)]
    if not any(isinstance(atom, Div | Mod) for mono, _ in varying for atom in mono):
        return None
    period, step = 1, 0
    for mono, coef in varying:
        found = _growth(mono[0], axis) if len(mono) == 1 else None
        if found is None:
            return None
        period, step = _sum((period, step), (found[0], coef * found[1]))
    if period > _MOST:
        return None
    own = Expr(tuple(varying), 0)
    places = tuple(int(own.evaluate({axis.name: k})) for k in range(period))
    rest = Expr(tuple(term for term in expr.terms if term not in varying), expr.const)
    return Periodic(places, step, rest)


def _sum(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    period = lcm(first[0], second[0])
    return period, first[1] * (period // first[0]) + second[1] * (period // second[0])


def _growth(atom: Atom, axis: Axis) -> tuple[int, int] | None:
    """After how many points the atom is what it was and some more, and how much; ``None`` where others have a say."""
    if atom == axis:
        return 1, 1
    if not isinstance(atom, Div | Mod) or not atom.den.is_int or atom.den.const <= 0:
        return None
    period, step = 1, 0
    for mono, coef in atom.num.terms:
        found = _growth(mono[0], axis) if len(mono) == 1 else None
        if found is None:
            return None
        period, step = _sum((period, step), (found[0], coef * found[1]))
    den = atom.den.const
    times = den // gcd(den, step)
    return period * times, step * times // den if isinstance(atom, Div) else 0


def _axes(atom: Atom) -> frozenset[str]:
    if isinstance(atom, Div | Mod):
        return atom.num.axes() | atom.den.axes()
    return frozenset([atom.name]) if isinstance(atom, Axis) else frozenset()
