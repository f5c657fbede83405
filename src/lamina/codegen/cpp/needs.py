"""What a piece of code depends on: the state that all writers of one nest share."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.codegen.cpp.expressions import index_text
from lamina.codegen.cpp.facts import Facts
from lamina.codegen.cpp.statements import Array, Statements
from lamina.codegen.cpp.text import Goal

__all__ = ["Needs"]


class Needs:
    """The nest being written, and where its values are."""

    def __init__(self, facts: Facts, dtypes: Mapping[str, str], first_check: int) -> None:
        self.facts = facts
        self.write = Statements(facts, dtypes)
        self.first_check = first_check
        self.arrays: dict[str, Array] = {}
        self.targets: dict[str, str] = {}
        self.blocks: dict[str, tuple[str, str]] = {}
        self.best_values: dict[str, Array] = {}
        self.running: dict[str, Array] = {}
        self.drains: dict[str, tuple[str, Array]] = {}

    def goal_axes(self, goal: Goal) -> frozenset[str]:
        return self.facts.axes[goal.name] if goal.name else self.facts.axes_at(goal.position)

    def needed(self, known: frozenset[str], goals: list[Goal]) -> set[int]:
        """Equations that the goals depend on and that are not at hand yet (the goals themselves left out)."""
        facts = self.facts
        found: set[int] = set()
        stack: list[int] = []
        keeps = {g.name for g in goals if g.name}

        def want(names: tuple[str, ...], guards: tuple[int, ...]) -> None:
            for name in names:
                position = facts.producer[name]
                at_hand = name in known or name in self.write.decided or facts.constant(name) is not None
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
                want(self.write.reads(goal.position), facts.guards[goal.position])
        while stack:
            position = stack.pop()
            want(self.write.reads(position), facts.guards[position])
        return found

    def bounds(self, axis: str) -> tuple[str, str]:
        """First and last (exclusive) value of an axis in the code being written."""
        return self.blocks.get(axis, ("0", index_text(self.facts.extent[axis], {})))
