"""Reductions over a few points beside the vector axis, as in pooling: registers hold them from start to end."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.codegen.cpp.bounds import Bounds
from lamina.codegen.cpp.expressions import index_text
from lamina.codegen.cpp.needs import Needs
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.reductions import Reductions
from lamina.codegen.cpp.text import LoopBody, Text
from lamina.codegen.cpp.vector_body import VectorBody
from lamina.ir.index import prod
from lamina.ir.loops import Check, Random, Reduce, Scan

__all__ = ["Windows"]

_LARGEST = 32
"""Points of a window at most."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Writes loops over windows inside the vector loop."""

    facts: NestAnalysis
    bounds: Bounds
    needs: Needs
    body: VectorBody
    reductions: Reductions

    def write(self, text: Text, axis: str, loop_body: LoopBody) -> bool:
        """Write the loops from the one over ``axis`` on in this way, if that is possible."""
        facts = self.facts
        loops = [
            a
            for a in facts.order
            if a not in loop_body.opened and a != facts.vector and facts.loop[a] >= facts.loop[axis]
        ]
        reductions = self._reductions(axis, loops, loop_body)
        if not reductions or facts.vector is None:
            return False
        low, high = self.bounds.of(facts.vector)
        text.open(f"strip<1>({low}, {high}, [&](int64 {facts.vector}, auto n, int k) STEP {{")
        for eqn in reductions:
            self.reductions.begin_row(text, eqn)
        for name in loops:
            text.open(f"for (int64 {name} = 0; {name} < {index_text(facts.extent[name], {})}; ++{name}) {{")
        for line in self.body.lines(loop_body):
            text.add(line)
        for _ in loops:
            text.close()
        for eqn in reductions:
            self.reductions.end_row(text, eqn, joining=False)
        text.close("});")
        return True

    def _reductions(self, axis: str, loops: list[str], loop_body: LoopBody) -> list[Reduce]:
        """The reductions over the window of ``loops``, if the loop body is nothing else."""
        facts = self.facts
        size = prod(facts.extent[a] for a in loops)
        if facts.vector is None or axis == facts.vector or not size.is_int or size.const > _LARGEST:
            return []
        found = []
        for goal in loop_body.goals:
            eqn = facts.body[goal.position]
            if not isinstance(eqn, Reduce) or goal.name or set(eqn.axes) != set(loops):
                return []
            if self.reductions.target(eqn) not in ("array", "bests") or facts.vector not in self.needs.axes(goal):
                return []
            found.append(eqn)
        needed = self.needs.of(loop_body.known, loop_body.goals)
        return [] if any(isinstance(facts.body[p], Reduce | Scan | Check | Random) for p in needed) else found
