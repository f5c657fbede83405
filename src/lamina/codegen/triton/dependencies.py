"""What the equations of a nest depend on: values, and loops that must be open where they are evaluated."""

from __future__ import annotations

from collections.abc import Iterable

from lamina.codegen.triton.nest_analysis import NestAnalysis, Span
from lamina.codegen.triton.nest_reductions import NestReductions
from lamina.ir.loops import Load, Reduce, Store, operands

__all__ = ["Dependencies"]


class Dependencies:
    """Dependencies between a nest's equations, which are named by their positions in its body.

    Those of a reduction change while a loop carries it: what is taken beside a maximum then reads what that reads.
    """

    def __init__(self, facts: NestAnalysis, reductions: NestReductions) -> None:
        self.facts, self.reductions = facts, reductions

    def loops_of(self, position: int, opened: Span) -> list[int]:
        """Loops that must be open, and are not, where an equation is evaluated."""
        eqn = self.facts.body[position]
        span = self.facts.eqn_span(eqn)
        if isinstance(eqn, Reduce):
            span = span | self.facts.span_of_axes(eqn.axes)
        return [k for k in self.facts.loops if k in span and k not in opened]

    def inputs(self, position: int) -> tuple[str, ...]:
        """Values an equation reads."""
        eqn = self.facts.body[position]
        online = self.reductions.onlines.get(position)
        if online is not None and self.reductions.is_carried(position):
            return (online.value,)
        found = operands(eqn)
        if isinstance(eqn, Load | Store):
            found = (*found, *(check.cond for check in self.facts.guards(eqn)))
        return found

    def slice(self, goals: Iterable[int], known: frozenset[str], online: Iterable[int]) -> list[int]:
        """Equations that the goals need beyond what is known, in order. Sums in ``online`` stand on their maximum."""
        pending, found = list(goals), set(goals)
        paired = {p: self.reductions.onlines[p] for p in online}
        while pending:
            p = pending.pop()
            names = (paired[p].maximum, paired[p].value) if p in paired else self.inputs(p)
            for name in names:
                q = self.facts.use_def.positions[name]
                if name not in known and q not in found:
                    found.add(q)
                    pending.append(q)
        return sorted(found)

    def loads(self, goals: Iterable[int], known: frozenset[str]) -> list[Load]:
        """The loads that the goals need beyond what is known and that read no other value."""
        needed = (self.facts.body[p] for p in self.slice(goals, known, ()))
        return [eqn for eqn in needed if isinstance(eqn, Load) and not operands(eqn)]
