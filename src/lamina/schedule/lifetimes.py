"""Lifetimes of large results while steps are grouped: which would wait in a GPU's memory if two nests were joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lamina.ir.loops import LibraryCall, Step
from lamina.schedule.accesses import loaded, stored
from lamina.schedule.buffer_facts import BufferFacts
from lamina.schedule.dependence_graph import DependenceGraph
from lamina.schedule.group import Group

__all__ = ["Lifetimes"]


class Lifetimes:
    """How the large results of ``steps`` live, as far as these are in ``graph``, where each has its place as number."""

    def __init__(self, steps: Sequence[Step], buffers: BufferFacts, graph: DependenceGraph) -> None:
        self._buffers, self._graph = buffers, graph
        self._readers = Counter(name for step in steps for name in loaded(step))
        self._large_calls = 0  # a bit for each library call with a large result
        for number, step in enumerate(steps):
            if isinstance(step, LibraryCall) and any(map(buffers.is_large, stored(step))):
                self._large_calls |= 1 << number

    def waits(self, group: Group, other: Group) -> bool:
        """Whether library calls could read a large result of ``group``, and be done with it, before ``other`` can run.

        The two share operands only: joined, they read those once, but need more memory at once.
        """
        if not self._large_calls & other.ancestors & ~group.ancestors:
            return False
        for name in filter(self._buffers.is_large, group.writes):
            readers = self._graph.readers(name)
            if len(readers) == self._readers[name] and all(
                r.call is not None and not r.ancestors >> other.number & 1 for r in readers
            ):
                return True
        return False
