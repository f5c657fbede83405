"""What a piece of code depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamina.codegen.cpp.arrays import Arrays
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.operands import Operands
from lamina.codegen.cpp.text import Goal

__all__ = ["Needs"]


@dataclass(frozen=True, slots=True)
class Needs:
    """The equations that goals depend on, given what is decided and what is kept in memory."""

    facts: NestAnalysis
    operands: Operands
    arrays: Arrays

    def axes(self, goal: Goal) -> frozenset[str]:
        """Axes of the points at which a goal is reached."""
        return self.facts.axes[goal.name] if goal.name else self.facts.axes_at(goal.position)

    def of(self, known: frozenset[str], goals: Sequence[Goal]) -> set[int]:
        """Equations that the goals depend on and that are not at hand yet (the goals themselves left out)."""
        facts, operands = self.facts, self.operands
        found: set[int] = set()
        stack: list[int] = []
        keeps = {g.name for g in goals if g.name}

        def want(names: tuple[str, ...], guards: tuple[int, ...]) -> None:
            for name in names:
                position = facts.use_def.positions[name]
                at_hand = name in known or name in operands.decided or facts.constant(name) is not None
                if not at_hand and position not in found:
                    found.add(position)
                    if name not in self.arrays or name in keeps:
                        stack.append(position)
            for guard in guards:
                if guard not in found:
                    found.add(guard)
                    stack.append(guard)

        for goal in goals:
            if goal.name:
                want((goal.name,), ())
            else:
                want(operands.reads(goal.position), facts.guards[goal.position])
        while stack:
            position = stack.pop()
            want(operands.reads(position), facts.guards[position])
        return found
