"""Places in memory: how an index moves along the vector axis, and its text for a point or for each lane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lamina.codegen.cpp.expressions import index_text
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.operands import Operands
from lamina.codegen.cpp.repeats import Repeated, repeated
from lamina.ir.index import Axis, Expr, Loaded
from lamina.ir.stretches import jumps

__all__ = ["Addresses", "Stretches"]


@dataclass(frozen=True, slots=True)
class Stretches:
    """Texts of a vector's places that jump once or not at all.

    ``unbroken`` is the condition on which they do not. Otherwise, where only one kind of jump is possible, ``first``
    lanes come before it, and those behind it have places of their own number and ``behind``.
    """

    unbroken: str
    first: str | None
    behind: str | None


@dataclass(frozen=True, slots=True)
class Addresses:
    """Texts of a nest's indices."""

    facts: NestAnalysis
    operands: Operands

    def stride(self, expr: Expr) -> Expr | None:
        """Factor of the vector axis in an index, ``None`` where the lanes follow no straight line."""
        axis = self.facts.vector
        assert axis is not None
        if any(isinstance(a, Loaded) and self.operands.is_vector(a.name) for a in expr.atoms()):
            return None
        return expr.coefficient(Axis(axis, self.facts.extent[axis]))

    def step(self, expr: Expr, most: int) -> int:
        """The factor of the vector axis in an index if that is 2 to ``most``, else 0."""
        factor = self.stride(expr)
        return factor.const if factor is not None and factor.is_int and 2 <= factor.const <= most else 0

    def lanes(self, expr: Expr) -> tuple[str, str]:
        """An index for lane ``k``: what to declare first, and the index itself."""
        axis = self.facts.vector
        assert axis is not None
        names = {axis: "j"}
        for atom in expr.atoms():
            if isinstance(atom, Loaded) and self.operands.is_vector(atom.name):
                names[atom.name] = f"lane({atom.name}, k)"
        return f"const int64 j = {axis} + k; ", index_text(expr, {**self.constants(expr), **names})

    def constants(self, expr: Expr) -> dict[str, str]:
        """How values in an index that are constants, of which no variable is made, are written."""
        loaded = [atom.name for atom in expr.atoms() if isinstance(atom, Loaded)]
        return {name: self.operands.value(name, False) for name in loaded if self.facts.constant(name) is not None}

    def at(self, buffer: str, expr: Expr, names: Mapping[str, str] | None = None) -> str:
        """A pointer expression to the element of a buffer at an index; ``names`` replaces axes and loaded values."""
        text = index_text(expr, {**self.constants(expr), **(names or {})})
        return buffer if text == "0" else f"{buffer} + {text}"

    def cycle(self, expr: Expr) -> Repeated | None:
        """What to know of an index that goes on along the vector axis in the same way after every few points."""
        axis = self._axis(expr)
        return None if axis is None else repeated(expr, axis, self.facts.schedule.width)

    def stretches(self, expr: Expr) -> Stretches | None:
        """What to know of an index whose lanes' places go on one by one in most vectors."""
        axis, lanes = self._axis(expr), self.facts.schedule.width // 4
        found = () if axis is None or not lanes else jumps(expr, axis, 2 * lanes)
        if not found or axis is None:
            return None
        past = [(index_text(jump.number % jump.length, self.constants(expr)), jump.length) for jump in found]
        unbroken = " && ".join(f"{text} <= {length} - lane_count(n)" for text, length in past)
        if len(found) > 1:
            return Stretches(unbroken, None, None)
        (text, length) = past[0]
        last = index_text(expr, {**self.constants(expr), axis.name: f"({axis.name} + lane_count(n) - 1)"})
        return Stretches(unbroken, f"{length} - {text}", f"{last} - lane_count(n) + 1")

    def _axis(self, expr: Expr) -> Axis | None:
        """The vector axis, unless an index has places that are loaded for each lane."""
        axis = self.facts.vector
        if axis is None or any(isinstance(a, Loaded) and self.operands.is_vector(a.name) for a in expr.atoms()):
            return None
        return Axis(axis, self.facts.extent[axis])
