"""The body of a vector loop: what is done with a vector of consecutive points."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lamina.codegen.cpp.arrays import Arrays
from lamina.codegen.cpp.definitions import Definitions
from lamina.codegen.cpp.needs import Needs
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.operands import Operands
from lamina.codegen.cpp.reductions import Reductions
from lamina.codegen.cpp.scans import Scans
from lamina.codegen.cpp.stores import Stores
from lamina.codegen.cpp.text import LoopBody
from lamina.ir.loops import Check, Compute, Constant, Load, Reduce, Scan, Store, defined
from lamina.ir.ops import OPS

__all__ = ["VectorBody"]


@dataclass(frozen=True, slots=True)
class VectorBody:
    """Writes the statements of a nest's vector loops."""

    facts: NestAnalysis
    operands: Operands
    needs: Needs
    arrays: Arrays
    definitions: Definitions
    stores: Stores
    reductions: Reductions
    scans: Scans

    def lines(self, loop_body: LoopBody, before: Collection[int] = ()) -> list[str]:
        """Statements of the vector loop, in the order of the equations, without those that stand ``before`` it."""
        facts = self.facts
        as_goal = {g.position: g for g in loop_body.goals}
        keeps = {g.position for g in loop_body.goals if g.name}
        lines: list[str] = []
        places = sorted((self.needs.of(loop_body.known, loop_body.goals) | set(as_goal)) - set(before))
        turns = self._turns(places)
        joined = {one for row in turns.values() for one in row}
        for position in places:
            eqn = facts.body[position]
            if position in keeps:
                lines += self._value(position)
                lines.append(self.arrays.store(as_goal[position].name))
            elif position in turns:
                lines.append(self.stores.store_turns([facts.stores[one] for one in turns[position]]))
            elif isinstance(eqn, Store):
                lines += [] if position in joined else [self.stores.store(eqn, True)]
            elif isinstance(eqn, Check):
                cond = self.operands.value(eqn.cond, True)
                number = facts.check_number[position]
                lines.append(f"if (any_lane(~{cond} & lanes(n))) {{ failed = {number}; return; }}")
            elif isinstance(eqn, Reduce) and position in as_goal:
                lines.append(self.reductions.step_lanes(eqn))
            else:
                lines += self._defined(position)
        return lines

    def invariant(self, loop_body: LoopBody, axis: str) -> list[int]:
        """What the loop over ``axis`` computes that is the same in all its rounds, in the order of the equations."""
        facts = self.facts
        wanted = sorted(self.needs.of(loop_body.known, loop_body.goals))
        written = {facts.stores[g.position].buffer for g in loop_body.goals if g.position in facts.stores}
        if any(
            isinstance(e := facts.body[p], Scan | Check) or (isinstance(e, Load) and e.buffer in written)
            for p in wanted
        ):
            return []
        return [p for p in wanted if all(axis not in facts.axes[name] for name in defined(facts.body[p]))]

    def before(self, positions: Sequence[int]) -> list[str]:
        """Statements for what is ``invariant``."""
        return [line for position in positions for line in self._defined(position)]

    def _defined(self, position: int) -> list[str]:
        """Statements for a value that is computed here or was kept."""
        eqn = self.facts.body[position]
        if isinstance(eqn, Constant | Store | Check):
            return []
        name = eqn.outs[0] if isinstance(eqn, Reduce) else eqn.out
        return [self.arrays.load(name)] if name in self.arrays else self._value(position)

    def accumulators(self, loop_body: LoopBody, before: Collection[int] = ()) -> int:
        """How many accumulators: enough to hide an addition's latency behind cheap work."""
        cost = 0
        for position in self.needs.of(loop_body.known, loop_body.goals).difference(before):
            eqn = self.facts.body[position]
            cost += OPS[eqn.op].cost if isinstance(eqn, Compute) else 2
        return 4 if cost <= 24 else 2 if cost <= 48 else 1

    def _value(self, position: int) -> list[str]:
        """Statements that define a value."""
        eqn = self.facts.body[position]
        return self.scans.advance(eqn) if isinstance(eqn, Scan) else [self.definitions.define(position)]

    def _turns(self, places: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Stores of the loop whose elements take turns in memory: position of the last of them to all, in that order.

        What is read from such memory behind the first of them is read where it was.
        """
        stores = [p for p in places if p in self.facts.stores]
        found = self.stores.turns([self.facts.stores[p] for p in stores])
        turns = {stores[last]: tuple(stores[k] for k in row) for last, row in found.items()}
        read = [(p, e.buffer) for p in places if isinstance(e := self.facts.body[p], Load)]
        return {
            last: row
            for last, row in turns.items()
            if not any(min(row) < p < last and b == self.facts.stores[last].buffer for p, b in read)
        }
