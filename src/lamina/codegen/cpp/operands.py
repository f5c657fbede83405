"""Values as operands of generated statements, for a single point or for a vector of consecutive points."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from lamina.codegen.cpp.expressions import literal, splat
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.ir.loops import Compute, Load, Store

__all__ = ["Operands"]

_Access = TypeVar("_Access", Load, Store)


class Operands:
    """Texts of a nest's values, and the conditions that are decided in the code being written."""

    def __init__(self, facts: NestAnalysis) -> None:
        self.facts = facts
        self.decided: dict[str, bool] = {}

    @contextmanager
    def deciding(self, conditions: dict[str, bool]) -> Iterator[None]:
        """Write code in which each of these bool values is a constant."""
        self.decided = conditions
        yield
        self.decided = {}

    def with_mask_decided(self, eqn: _Access) -> _Access | None:
        """A load or store without a mask that is decided to hold; None where it is decided not to."""
        if eqn.mask not in self.decided:
            return eqn
        return replace(eqn, mask=None) if self.decided[eqn.mask] else None

    def is_vector(self, name: str) -> bool:
        """Whether a value varies along the vector axis."""
        return self.facts.vector is not None and self.facts.vector in self.facts.axes[name]

    def value(self, name: str, vector: bool) -> str:
        """A value as an operand: in vector code everything is a vector."""
        if name in self.decided:
            text = literal(self.decided[name], "bool")
            return splat("bool", text) if vector else text
        constant = self.facts.constant(name)
        text = literal(constant.value, constant.dtype) if constant is not None else name
        return splat(self.facts.dtype[name], text) if vector and not self.is_vector(name) else text

    def reads(self, position: int) -> tuple[str, ...]:
        """Values an equation needs, given the conditions that are decided."""
        eqn = self.facts.body[position]
        if isinstance(eqn, Compute) and eqn.op == "where" and eqn.ins[0] in self.decided:
            return (eqn.ins[1 if self.decided[eqn.ins[0]] else 2],)
        if isinstance(eqn, Load) and eqn.mask in self.decided and not self.decided[eqn.mask]:
            return ()
        return self.facts.needs[position]
