"""What is done at a single point of a nest, inside the loops that are open."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.codegen.cpp.arrays import Arrays
from lamina.codegen.cpp.definitions import Definitions
from lamina.codegen.cpp.needs import Needs
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.operands import Operands
from lamina.codegen.cpp.prefetch import Prefetches
from lamina.codegen.cpp.reductions import Reductions
from lamina.codegen.cpp.scans import Scans
from lamina.codegen.cpp.stores import Stores
from lamina.codegen.cpp.text import Goal, Scope
from lamina.ir.loops import Check, Constant, Load, Reduce, Scan, Store

__all__ = ["Points"]


@dataclass(frozen=True, slots=True)
class Points:
    """Writes equations and goals in scalar code."""

    facts: NestAnalysis
    operands: Operands
    needs: Needs
    arrays: Arrays
    definitions: Definitions
    stores: Stores
    reductions: Reductions
    scans: Scans
    prefetches: Prefetches

    def define(self, scope: Scope, opened: frozenset[str], position: int) -> str | None:
        """Write what defines a value, if that needs no further loop; the value's name where it is in scope then."""
        eqn = self.facts.body[position]
        name = eqn.outs[0] if isinstance(eqn, Reduce) else eqn.out  # type: ignore[union-attr]
        if name in self.arrays:
            if not self.facts.axes[name] <= opened:
                return None
            scope.text.add(self.arrays.load(name))
            return name
        if not self.facts.axes_at(position) <= opened or isinstance(eqn, Constant | Reduce):
            return None
        self._compute(scope, position)
        if isinstance(eqn, Load):
            self.prefetches.next_places(scope.text, opened, eqn)
        return name

    def reach(self, scope: Scope, opened: frozenset[str], goal: Goal) -> None:
        """Write a goal whose loops are all open."""
        facts, text = self.facts, scope.text
        if goal.name:
            self._compute(scope, goal.position)
            text.add(self.arrays.store(goal.name))
            return
        eqn = facts.body[goal.position]
        if isinstance(eqn, Reduce):
            text.add(self.reductions.step(eqn))
        elif isinstance(eqn, Check):
            number = facts.check_number[goal.position]
            cond = self.operands.value(eqn.cond, False)
            leave = f"{{ failed = {number}; continue; }}" if scope.leave == "continue" else f"return {number};"
            text.add(f"if (!{cond}) {leave}  // {eqn.message[:60]!r}")
        else:
            assert isinstance(eqn, Store)
            text.add(f"{self._once(opened, goal)}{self.stores.store(eqn, False)}")

    def _compute(self, scope: Scope, position: int) -> None:
        """Write an equation that defines one scalar."""
        eqn = self.facts.body[position]
        for line in self.scans.advance(eqn) if isinstance(eqn, Scan) else [self.definitions.define(position)]:
            scope.text.add(line)

    def _once(self, opened: frozenset[str], goal: Goal) -> str:
        """A store that does not depend on some open shared axis happens at its first point only."""
        axes = self.needs.axes(goal)
        missing = [a for a in self.facts.order if a in opened and a not in axes]
        missing += [f"{a}_tile" for a in self.facts.tiles if f"{a}_tile" in opened and a not in axes]
        return f"if ({' && '.join(f'{a} == 0' for a in missing)}) " if missing else ""
