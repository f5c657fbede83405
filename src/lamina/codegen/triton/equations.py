"""Statements of a nest's equations, whose loops are all open."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.codegen.triton.computations import Computations
from lamina.codegen.triton.memory import Memory
from lamina.codegen.triton.nest_analysis import NestAnalysis
from lamina.codegen.triton.nest_reductions import NestReductions
from lamina.codegen.triton.operands import Operands
from lamina.codegen.triton.reciprocals import Reciprocals
from lamina.codegen.triton.reductions import Reducer
from lamina.codegen.triton.scans import Scanner
from lamina.codegen.triton.text import Text
from lamina.codegen.triton.unrolled import UnrolledLoop
from lamina.ir.loops import Compute, Constant, Index, Load, Random, Reduce, Scan, Store
from lamina.ir.predicated import predicated_branches

__all__ = ["EquationWriter"]


class EquationWriter:
    """Writes single equations of a nest, each by the part of it that knows how.

    ``first_check`` numbers the nest's Checks among the kernel's.
    """

    def __init__(self, facts: NestAnalysis, text: Text, first_check: int = 0) -> None:
        self.facts, self.text = facts, text
        reduce, reciprocals = Reducer(facts), Reciprocals(facts)
        self.operands = Operands(facts)
        self.computations = Computations(facts, self.operands, reciprocals)
        self.reductions = NestReductions(facts, self.operands, reduce, reciprocals)
        self.memory = Memory(facts, self.operands, reduce, self.reductions.cluster, first_check)
        self.scans = Scanner(facts, reduce)
        self.unrolled = UnrolledLoop(facts, self.memory)
        self._branches = _branches(facts)
        self._postponed = {p for private in self._branches.values() for p in private}

    def write(self, position: int) -> None:
        """Write one equation, unless another one does its work."""
        eqn, text = self.facts.body[position], self.text
        if position in self._postponed or isinstance(eqn, Constant):
            return
        if self.reductions.is_joined(position) or self.computations.is_unused(position):
            return
        if self.memory.by_turns(text, position):
            return
        if isinstance(eqn, Compute) and position in self._branches:
            self._branch(position, eqn)
        elif isinstance(eqn, Load) and self.unrolled.holds(eqn):
            text.add(f"{eqn.out} = {self.unrolled.load(text, eqn)}")
        elif isinstance(eqn, Load):
            text.add(f"{eqn.out} = {self.memory.load(eqn)}")
        elif isinstance(eqn, Compute):
            text.add(f"{eqn.out} = {self.computations.compute(position, eqn)}")
        elif isinstance(eqn, Index):
            text.add(f"{eqn.out} = {self.computations.index(eqn)}")
        elif isinstance(eqn, Random):
            text.add(f"{eqn.out} = {self.computations.random(eqn)}")
        elif isinstance(eqn, Reduce):
            self.reductions.write(text, position, eqn)
        elif isinstance(eqn, Scan):
            self.scans.write(text, eqn, self.operands.value(eqn.value))
        elif isinstance(eqn, Store):
            self.memory.store(text, eqn)
        else:
            self.memory.check(text, position, eqn)

    def _branch(self, position: int, choice: Compute) -> None:
        """A choice as a branch that programs take if one of their rows needs it: nothing in it is read ahead."""
        text, places = self.text, self._branches[position]
        same, first, _ = choice.ins
        rows = self.facts.dims(self.facts.span(same))
        text.add(f"{choice.out} = {self.operands.value(first)}")
        text.open(f"if tl.min({same}.to(tl.int32), axis=None) == 0:" if rows else f"if ~{same}:")
        self._postponed.difference_update(places)
        for p in places:
            self.write(p)
        self._postponed.update(places)
        text.add(f"{choice.out} = {self.computations.compute(position, choice)}")
        text.close()


def _branches(facts: NestAnalysis) -> Mapping[int, tuple[int, ...]]:
    """For each choice whose last operand is loaded for a few rows only, the equations that wait for that."""
    found: dict[int, tuple[int, ...]] = {}
    for branch in predicated_branches(facts.nest) if facts.cluster is None else ():
        masked = any(isinstance(e, Load) and e.mask is not None for e in branch.private)
        if masked and facts.dims(facts.span(branch.choice.ins[1])) == facts.dims(facts.span(branch.choice.out)):
            private = {id(e) for e in branch.private}
            places = tuple(p for p, e in enumerate(facts.body) if id(e) in private)
            found[facts.use_def.positions[branch.choice.out]] = places
    return found
