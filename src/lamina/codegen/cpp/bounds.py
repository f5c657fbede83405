"""First and last values of axes in the code being written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from lamina.codegen.cpp.expressions import index_text
from lamina.codegen.cpp.nest_analysis import NestAnalysis

__all__ = ["BLOCK", "Bounds"]

BLOCK = 4096
"""Points that lanes add up before their sum goes into a total."""


class Bounds:
    """The bounds of each axis: the whole of it, or a block of it where its loop is one of several over it."""

    def __init__(self, facts: NestAnalysis) -> None:
        self.facts = facts
        self._blocks: dict[str, tuple[str, str]] = {}

    @contextmanager
    def within(self, blocks: Mapping[str, tuple[str, str]]) -> Iterator[None]:
        """Write code in which each of these axes goes from the first of its two values up to the second."""
        self._blocks.update(blocks)
        yield
        for axis in blocks:
            del self._blocks[axis]

    def of(self, axis: str) -> tuple[str, str]:
        """First and last (exclusive) value of an axis."""
        return self._blocks.get(axis, ("0", index_text(self.facts.extent[axis], {})))

    def is_block(self, axis: str) -> bool:
        """Whether the loop over an axis goes over a block of it only."""
        return axis in self._blocks

    def is_short(self, axis: str) -> bool:
        """Whether the loop over an axis is known to be short enough for plain accumulation."""
        extent = self.facts.extent[axis]
        return extent.is_int and extent.const <= BLOCK and axis not in self._blocks
