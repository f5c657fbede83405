"""Values of a nest as operands: a name, or the literal of a constant."""

from __future__ import annotations

from lamina.codegen.triton.expressions import constant_text
from lamina.codegen.triton.nest_analysis import NestAnalysis
from lamina.codegen.triton.types import literal

__all__ = ["Operands"]


class Operands:
    """Texts of a nest's values where expressions use them. Constants have no statement of their own."""

    def __init__(self, facts: NestAnalysis) -> None:
        self._use_def = facts.use_def

    def value(self, name: str) -> str:
        """A value as an operand."""
        constant = self._use_def.constant(name)
        return name if constant is None else constant_text(constant.value, constant.dtype)

    def is_constant(self, name: str) -> bool:
        """Whether a value is the same number at every point."""
        return self._use_def.constant(name) is not None

    def constant(self, name: str) -> int | float | bool | None:
        """The number that a value is at every point; ``None`` where it varies."""
        found = self._use_def.constant(name)
        return None if found is None else found.value

    def plain(self, name: str) -> str | None:
        """The literal of a constant that may stand beside an infix operator."""
        constant = self._use_def.constant(name)
        if constant is None or constant.dtype == "bool":
            return None
        found = literal(constant.value, constant.dtype)
        return f"({found})" if found.startswith("-") else found
