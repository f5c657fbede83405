"""Reciprocals of sums that stand beside a maximum: quotients by such a sum are products, which are cheaper."""

from __future__ import annotations

from lamina.codegen.triton.nest_analysis import NestAnalysis
from lamina.codegen.triton.text import Text
from lamina.ir.loops import Reduce

__all__ = ["Reciprocals"]


class Reciprocals:
    """The sums of a nest whose reciprocal is defined."""

    def __init__(self, facts: NestAnalysis) -> None:
        self.facts = facts
        self._names: dict[str, str] = {}

    def define(self, text: Text, total: Reduce) -> None:
        """The reciprocal of a sum beside a maximum, where approximations will do: the sum is never tiny."""
        (out,) = total.outs
        if self.facts.schedule.approximate and self.facts.dtype[out] == "float32":
            self._names[out] = f"{out}_inverse"
            text.add(f"{out}_inverse = 1.0 / {out}")

    def of(self, name: str) -> str | None:
        """The name of a value's reciprocal, if there is one."""
        return self._names.get(name)
