"""Loops whose tiles are written one after the other, so that what they load stays in registers for later phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamina.base.dtypes import DTYPES
from lamina.codegen.triton.memory import Memory
from lamina.codegen.triton.nest_analysis import NestAnalysis
from lamina.codegen.triton.source import UnsupportedKernel
from lamina.codegen.triton.text import Text
from lamina.ir.index import as_expr
from lamina.ir.loops import Load

__all__ = ["UnrolledLoop"]


class UnrolledLoop:
    """The tiles of an unrolled loop, and the loads that registers hold of each."""

    def __init__(self, facts: NestAnalysis, memory: Memory) -> None:
        self.facts, self.memory = facts, memory
        self._tile = ""  # that is being written
        self._kept: set[str] = set()
        self._ahead: set[str] = set()  # loaded, and not used since

    def write(self, text: Text, k: int, loads: Sequence[Load], body: Callable[[], None]) -> None:
        """Write ``body`` for each tile of the loop over block ``k``, after ``loads`` of all tiles the first time."""
        facts, line = self.facts, self.facts.lines[k]
        size, extent = facts.blocks[k].size, facts.extents[k]
        shared = facts.shared_loop is not None
        reach = as_expr(facts.share(k)) if shared else extent
        even = not shared or extent == facts.share(k) * facts.schedule.cluster
        if not reach.is_int or facts.schedule.peel:
            raise UnsupportedKernel("a loop that is unrolled, of unknown length or with unaligned ends")
        begins = range(0, reach.const, size)
        ahead = {
            f"{e.out}_tile{n}" for e in loads for n in range(len(begins)) if facts.dims(facts.eqn_span(e))
        } - self._kept
        for pass_ in ("loads", "work") if ahead else ("work",):
            for number, begin in enumerate(begins):
                self._tile = str(number)
                facts.inside_tile = even and begin + size <= reach.const
                text.extend(facts.line_text(k, f"{line}_first + {begin}" if shared else str(begin)))
                if pass_ == "work":
                    body()
                    continue
                for eqn in loads:
                    if self._name(eqn) in ahead:
                        self.load(text, eqn)
                        self._ahead.add(self._name(eqn))
        facts.inside_tile, self._tile = False, ""

    def holds(self, eqn: Load) -> bool:
        """Whether a load is of the tile of an unrolled loop."""
        return bool(self._tile and self.facts.dims(self.facts.eqn_span(eqn)))

    def load(self, text: Text, eqn: Load) -> str:
        """The name of such a load: from memory the first time, then what is held of it."""
        name = self._name(eqn)
        if name not in self._kept:
            text.add(f"{name} = {self.memory.load(eqn)}")
            self._kept.add(name)
        elif name in self._ahead:
            self._ahead.remove(name)
        elif DTYPES[self.facts.buffers[eqn.buffer]].size <= 4 and eqn.dtype != "bool":
            text.add(f"{name} = keep({name})")
        return name

    def _name(self, eqn: Load) -> str:
        return f"{eqn.out}_tile{self._tile}"
