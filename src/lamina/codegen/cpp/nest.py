"""One nest: the code of the calling thread, and a function for each loop that threads share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lamina.codegen.cpp.addresses import Addresses
from lamina.codegen.cpp.arrays import Arrays
from lamina.codegen.cpp.best_places import BestPlaces
from lamina.codegen.cpp.bounds import Bounds
from lamina.codegen.cpp.column_totals import ColumnTotals
from lamina.codegen.cpp.definitions import Definitions, random_runs
from lamina.codegen.cpp.expressions import index_text
from lamina.codegen.cpp.loads import Loads
from lamina.codegen.cpp.loop_bodies import LoopBodyWriter
from lamina.codegen.cpp.loops import Loops
from lamina.codegen.cpp.needs import Needs
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.operands import Operands
from lamina.codegen.cpp.partials import Partials
from lamina.codegen.cpp.phases import Phases
from lamina.codegen.cpp.points import Points
from lamina.codegen.cpp.prefetch import Prefetches
from lamina.codegen.cpp.reductions import Reductions
from lamina.codegen.cpp.row_blocks import RowBlocks
from lamina.codegen.cpp.scans import Scans
from lamina.codegen.cpp.shared_loop import SharedLoop
from lamina.codegen.cpp.stores import Stores
from lamina.codegen.cpp.strips import Strips
from lamina.codegen.cpp.text import Goal, LoopBody, Memory, Scope, Text, settle_streams
from lamina.codegen.cpp.thread_loop import ThreadLoop
from lamina.codegen.cpp.transposes import Transposes
from lamina.codegen.cpp.vector_body import VectorBody
from lamina.codegen.cpp.windows import Windows
from lamina.ir.index import prod
from lamina.ir.loops import Check, Store

__all__ = ["NestWriter"]


@dataclass(frozen=True, slots=True)
class NestWriter:
    """Writes a nest: ``of`` makes the parts that do so, each with those that it asks."""

    facts: NestAnalysis
    memory: Memory
    loop_bodies: LoopBodyWriter
    shared_loop: SharedLoop

    @classmethod
    def of(cls, facts: NestAnalysis, dtypes: Mapping[str, str], sizes: Sequence[str], prefix: str) -> NestWriter:
        """The writer of a nest over buffers of these types, of a kernel with these run-time sizes.

        ``prefix`` begins the names of the nest's functions.
        """
        operands, bounds = Operands(facts), Bounds(facts)
        arrays = Arrays(facts, bounds, operands)
        addresses, needs = Addresses(facts, operands), Needs(facts, operands, arrays)
        definitions = Definitions(facts, dtypes, operands, addresses, Loads(facts, dtypes, operands, addresses))
        stores = Stores(facts, dtypes, operands, addresses)
        prefetches = Prefetches(facts, dtypes, addresses, bounds)

        best, totals = BestPlaces(facts, operands, arrays), ColumnTotals(facts, arrays)
        reductions = Reductions(facts, operands, bounds, arrays, best, totals)
        scans = Scans(facts, operands, arrays, needs)

        body = VectorBody(facts, operands, needs, arrays, definitions, stores, reductions, scans)
        strips = Strips(facts, bounds, operands, needs, body, reductions, scans, prefetches)
        windows = Windows(facts, bounds, needs, body, reductions)
        row_blocks = RowBlocks(facts, bounds, needs, body, reductions, totals)
        loops = Loops(facts, bounds, arrays, reductions, totals, scans, strips, windows, row_blocks)

        memory = Memory("memory")
        partials = Partials(facts, memory, arrays, reductions, best, totals, row_blocks)
        transposes = Transposes(facts, dtypes, addresses, arrays)
        thread_loop = ThreadLoop(facts, bounds, totals, strips, row_blocks, transposes)
        shared_loop = SharedLoop(facts, dtypes, sizes, prefix, arrays, loops, partials, thread_loop)

        points = Points(facts, operands, needs, arrays, definitions, stores, reductions, scans, prefetches)
        phases = Phases(facts, needs, arrays)
        loop_bodies = LoopBodyWriter(facts, needs, arrays, phases, points, loops, shared_loop)
        return cls(facts, memory, loop_bodies, shared_loop)

    def write(self, main: Text) -> list[str]:
        """Write the nest as a block of the kernel's function; the functions that it calls."""
        facts = self.facts
        goals = [Goal(p) for p, e in enumerate(facts.body) if isinstance(e, Store | Check)]
        inside = Text(main.depth + 1)
        self.loop_bodies.write(Scope(inside, self.memory, "return"), LoopBody(frozenset(), frozenset(), goals))
        shape = ", ".join(f"{a} < {facts.extent[a]}" for a in facts.order) or "a single point"
        main.open(f"{{  // {facts.schedule.kind}: {shape}")
        if facts.shared:
            points = index_text(prod(facts.extent.values()), {})
            main.add(f"const int64 threads = thread_count({points}, {facts.schedule.parallel});")
        private = self.shared_loop.private
        if self.memory.total() != "0" or private:
            main.add(f"const int64 shared = {self.memory.total()}, own = {' + '.join(private) or '0'};")
            threads = "threads" if facts.shared else "1"
            main.add(f"char* const memory = scratch(shared + {threads} * own);")
        noted = any("{ failed = " in line for line in inside.lines)  # a vector's check leaves its lambda only
        if noted:
            main.add("int64 failed = 0;")
        for line in random_runs(facts, inside):
            main.add(line)
        main.lines += inside.lines
        settle_streams(main, inside)
        if noted:
            main.add("if (failed) return failed;")
        main.close()
        return self.shared_loop.functions
