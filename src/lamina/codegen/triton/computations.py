"""Arithmetic of a nest as Triton expressions: computed values, index values and random numbers."""

from __future__ import annotations

import math

from lamina.codegen.triton.expressions import cast_text, compute_text, constant_text
from lamina.codegen.triton.integer_rounding import find_integer_roundings
from lamina.codegen.triton.nest_analysis import NestAnalysis, size_text
from lamina.codegen.triton.operands import Operands
from lamina.codegen.triton.reciprocals import Reciprocals
from lamina.codegen.triton.types import typed
from lamina.ir.loops import Compute, Index, Random

__all__ = ["Computations"]


class Computations:
    """Expressions of a nest's Compute, Index and Random equations."""

    def __init__(self, facts: NestAnalysis, operands: Operands, reciprocals: Reciprocals) -> None:
        self.facts, self.operands, self.reciprocals = facts, operands, reciprocals
        self.wholes = find_integer_roundings(facts)

    def is_unused(self, position: int) -> bool:
        """Whether the expressions that need an equation do its work themselves."""
        return position in self.wholes.tests

    def compute(self, position: int, eqn: Compute) -> str:
        """The expression of the scalar operation at ``position``."""
        value, wholes, approximate = self.operands.value, self.wholes, self.facts.schedule.approximate
        if position in wholes.casts:
            return f"round_to_bits({value(eqn.ins[0])}).to({typed(eqn.dtype)})"
        if position in wholes.roundings:
            return value(eqn.ins[0])  # the cast rounds
        if position in wholes.clamps:
            way, inner, bound = wholes.clamps[position]
            return f"tl.{way}({inner}, {value(bound)}, propagate_nan=tl.PropagateNan.ALL)"
        if position in wholes.quotients and not approximate:
            return f"small_quotient({value(eqn.ins[0])}, {value(eqn.ins[1])})"
        if eqn.op == "div" and eqn.dtype == "float32" and (inverse := self.reciprocals.of(eqn.ins[1])):
            return f"{value(eqn.ins[0])} * {inverse}"
        if eqn.op == "div" and eqn.dtype == "float32" and (number := self._power_of_two(eqn)):
            return f"{value(eqn.ins[0])} * {constant_text(1 / number, 'float32')}"
        dtypes = [self.facts.dtype[n] for n in eqn.ins]
        varying = not all(self.operands.is_constant(n) for n in eqn.ins)

        def plain(k: int) -> str | None:
            return self.operands.plain(eqn.ins[k]) if varying else None

        return compute_text(eqn, dtypes, lambda k: value(eqn.ins[k]), plain, approximate)

    def _power_of_two(self, eqn: Compute) -> float | None:
        """The power of two that a varying operand is divided by, where it and its inverse are normal numbers."""
        divisor = self.operands.constant(eqn.ins[1])
        if divisor is None or self.operands.is_constant(eqn.ins[0]) or math.frexp(abs(float(divisor)))[0] != 0.5:
            return None
        return float(divisor) if 2.0**-120 < abs(divisor) < 2.0**120 else None

    def index(self, eqn: Index) -> str:
        """An index as a value."""
        number = f"({self.facts.text(self.facts.joined(eqn.expr))} + tl.full((), 0, tl.int64))"
        return cast_text(number, "int64", eqn.dtype)

    def random(self, eqn: Random) -> str:
        """A random number, from the block that it shares with its neighbours where the tile has whole blocks."""
        stream = eqn.stream if isinstance(eqn.stream, int) else size_text(eqn.stream)
        seed, quad = self.operands.value(eqn.seed), self.facts.quad(eqn.index)
        if quad is None:
            place = f"{self.facts.text(self.facts.joined(eqn.index))} + tl.full((), 0, tl.int64)"
            made = f"uniform({seed}, {stream}, {place})"
        else:
            k, rest = quad
            begin = f"({self.facts.text(rest)}) // 4 + " if rest != 0 else ""
            block = f"{begin}{self.facts.lines[k]}_quads + tl.full((), 0, tl.int64)"
            made = f"uniform_quads({seed}, {stream}, {block})"
        return made if eqn.dtype == "float32" else cast_text(made, "float32", eqn.dtype)
