"""One nest as the body of a Triton function: equations placed in loops, and loops where reductions need them.

A region is what happens inside a set of open loops. Its equations fall into phases: a reduction over a loop that is
not open yet ends a phase, and what uses its result belongs to the next one. Each phase opens the loops its goals need
and computes again, inside them, whatever varies over them: a reduction with results for each point of a loop is done
inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from lamina.codegen.triton.cluster import Cluster
from lamina.codegen.triton.dependencies import Dependencies
from lamina.codegen.triton.equations import EquationWriter
from lamina.codegen.triton.hoisted_loads import hoisted_loads
from lamina.codegen.triton.nest_analysis import NestAnalysis, Span
from lamina.codegen.triton.source import UnsupportedKernel
from lamina.codegen.triton.text import Text
from lamina.codegen.triton.tile_loops import TileLoops
from lamina.ir.loops import Check, Store, defined

__all__ = ["NestWriter"]


class NestWriter:
    """Places the equations of one nest in regions and phases. ``first_check`` numbers its Checks among the kernel's."""

    def __init__(self, facts: NestAnalysis, text: Text, first_check: int = 0) -> None:
        self.facts, self.text, self.body = facts, text, facts.body
        self.equations = own = EquationWriter(facts, text, first_check)
        self.reductions = own.reductions
        self.dependencies = Dependencies(facts, own.reductions)
        self.loops = TileLoops(facts, text, own.scans, own.memory, own.unrolled)

    def run(self) -> None:
        """Write all of it; the indices of shared blocks are defined already."""
        for exchange in self.reductions.clusters:
            self.text.extend(exchange.lines())
        goals = [p for p, e in enumerate(self.body) if isinstance(e, Store | Check)]
        self._region(frozenset(), frozenset(), goals)
        cluster = self.reductions.cluster
        if cluster is not None and cluster.origin is not None:
            self._ends(cluster, goals)

    def _ends(self, cluster: Cluster, goals: Sequence[int]) -> None:
        """Unaligned first and last elements of rows shared by a cluster, computed again in a small tile."""
        stores = [p for p in goals if isinstance(e := self.body[p], Store) and cluster.meets(e.index[0])]
        known = frozenset(n for n in self.facts.use_def.positions if cluster.k not in self.facts.span(n))
        if stores:
            blocks = self.facts.blocks
            cluster.begin_ends(self.text)
            for p in self.dependencies.slice(stores, known, ()):
                self.equations.write(p)
            self.facts.blocks = blocks

    def _region(self, opened: Span, known: frozenset[str], goals: Sequence[int]) -> None:
        """Write what the goals need inside the loops of ``opened``, beyond the values that are known there."""
        completes, have = self.reductions.completes, set(known)
        for current in self._phases(opened, known, goals):
            inner: list[int] = []
            for p in current:
                if self.dependencies.loops_of(p, opened):
                    if p in goals or completes(p, opened):
                        inner.append(p)
                    continue
                self.equations.write(p)
                have.update(defined(self.body[p]))
            self._open_loops(opened, frozenset(have), inner)
            have.update(n for p in inner if completes(p, opened) for n in defined(self.body[p]))

    def _phases(self, opened: Span, known: frozenset[str], goals: Sequence[int]) -> list[list[int]]:
        """The equations that a region's goals need, by phase."""
        online = [p for p in self.reductions.onlines if self.reductions.completes(p, opened)]
        need = hoisted_loads(self.facts, self.dependencies.slice(goals, known, online))
        phase: dict[int, int] = {}
        ready: dict[str, int] = {}
        for p in need:
            names = self.dependencies.inputs(p) if p not in online else (self.reductions.onlines[p].value,)
            phase[p] = max((ready.get(n, 0) for n in names), default=0)
            for name in defined(self.body[p]):
                ready[name] = phase[p] + self.reductions.completes(p, opened)
        count = max(phase.values(), default=0) + 1
        return [self._checks_late([p for p in need if phase[p] == now]) for now in range(count)]

    def _checks_late(self, positions: Sequence[int]) -> list[int]:
        """The equations of a phase, Checks just before its next store: no load is moved above what a Check writes, so
        that a thread would wait for places before it asks for anything else.
        """
        found: list[int] = []
        waiting: list[int] = []
        for p in positions:
            if isinstance(self.body[p], Check):
                waiting.append(p)
                continue
            if isinstance(self.body[p], Store):
                found += waiting
                waiting = []
            found.append(p)
        return found + waiting

    def _first_loop(self, goal: int, opened: Span, known: frozenset[str]) -> int:
        """The loop that is opened first for a goal: none whose points are reduced anew in each tile of another loop."""
        needed = self.dependencies.slice([goal], known, ())
        later = frozenset[int]().union(*(self.reductions.repeated(p, opened) for p in needed))
        found = [k for k in self.dependencies.loops_of(goal, opened) if k not in later]
        if not found:
            raise UnsupportedKernel("reductions across two loops, each of results that vary over the other loop")
        return found[0]

    def _open_loops(self, opened: Span, known: frozenset[str], goals: Sequence[int]) -> None:
        """Open the loops that the goals need, those of equal first loop together."""
        first = {p: self._first_loop(p, opened, known) for p in goals}
        for k in self.facts.loops:
            mine = [p for p in goals if first[p] == k]
            if not mine:
                continue
            carried = [p for p in mine if self.reductions.completes(p, opened)]
            self.reductions.begin(self.text, carried)
            loads = self.dependencies.loads(mine, known)
            self.loops.write(k, mine, loads, partial(self._region, opened | {k}, known, mine))
            self.reductions.finish(self.text, carried)
