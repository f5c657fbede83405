"""A nest about to be cut for a GPU: its equations, what depends on its reductions, what they need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lamina.ir.index import prod
from lamina.ir.loops import Check, Equation, Load, Nest, Reduce, Store, axes_of_values, defined, operands
from lamina.ir.use_def import UseDef
from lamina.schedule.gpu_facts import guess

__all__ = [
    *("ACROSS", "COLUMN_POINTS", "HALVES", "MANY", "SHORT", "WIDEST"),
    *("NestToCut", "axes_of", "needed"),
]

WIDEST = 8192
"""Columns of which a program keeps several sums in registers."""
SHORT = 64
"""Elements of contiguous runs below which a reduction of them reads narrow pieces."""
ACROSS = 64
"""Columns that a program reduces side by side."""
COLUMN_POINTS = 64
"""Points of a column that are worth a program."""
HALVES = ("float16", "bfloat16")
"""Types in which parts would be rounded on their way."""
MANY = 1 << 20
"""Points from which narrow pieces cost more than two launches."""


class NestToCut:
    """One nest, indexed. Equations are known by their position in the body."""

    def __init__(self, nest: Nest) -> None:
        self.nest, self.body = nest, nest.body
        self.axes = {a.name: a for a in nest.axes}
        self.values = axes_of_values(nest)
        self.use_def = UseDef(self.body)
        self.reduces = [p for p, e in enumerate(self.body) if isinstance(e, Reduce)]
        self.sets = list(dict.fromkeys(frozenset(e.axes) for e in self.body if isinstance(e, Reduce)))

    def reduce(self, position: int) -> Reduce:
        eqn = self.body[position]
        assert isinstance(eqn, Reduce)
        return eqn

    def size(self, names: Iterable[str]) -> int:
        return guess(prod(self.axes[a].extent for a in names))

    def volume(self, inner: frozenset[str]) -> int:
        """Points a program would hold for ``inner`` at once; too many where a size is unknown."""
        if not all(self.axes[a].extent.is_int for a in inner):
            return WIDEST + 1
        return self.size(inner)

    def depending(self, positions: set[int]) -> set[int]:
        """Equations that use a result of these."""
        names = {n for p in positions for n in defined(self.body[p])}
        found: set[int] = set()
        for p, eqn in enumerate(self.body):
            if any(n in names for n in operands(eqn)):
                found.add(p)
                names.update(defined(eqn))
        return found

    def first(self) -> list[int]:
        """Reductions that depend on no other."""
        later = self.depending(set(self.reduces))
        return [p for p in self.reduces if p not in later]

    def goals(self) -> list[int]:
        return [p for p, e in enumerate(self.body) if isinstance(e, Store | Check)]

    def stored(self) -> list[str]:
        """The buffer of each store."""
        return [e.buffer for e in self.body if isinstance(e, Store)]

    def dtype(self, name: str) -> str:
        dtypes = self.use_def.dtypes
        return dtypes[name if name in dtypes else name.removesuffix("_in")]

    def slice(self, goals: Iterable[int], known: Mapping[str, object]) -> list[Equation]:
        """Equations that the goals need beyond known values, in order."""
        return [self.body[p] for p in self.use_def.backward_slice(goals, known)]


def needed(body: list[Equation], names: Iterable[str]) -> list[str]:
    """Those of ``names`` that the equations read."""
    read = {n for e in body for n in operands(e)}
    return [n for n in names if n in read]


def axes_of(eqn: Equation) -> set[str]:
    """Axes that an access goes along; none for other equations."""
    return {a for e in eqn.index for a in e.axes()} if isinstance(eqn, Load | Store) else set()
