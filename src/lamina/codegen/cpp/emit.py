"""A kernel of the Plan as one C++ function; the text is complete but for the prelude."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from lamina.codegen.cpp.accumulate import Accumulator
from lamina.codegen.cpp.expressions import SHORT, index_text, scalar_type
from lamina.codegen.cpp.facts import Facts
from lamina.codegen.cpp.regions import Region
from lamina.codegen.cpp.statements import Array
from lamina.codegen.cpp.text import Goal, Memory, Scope, Text
from lamina.ir.index import Axis, Loaded, prod
from lamina.ir.loops import Check, Load, Nest, Reduce, Store
from lamina.ir.plan import Kernel, Schedule

__all__ = ["CpuTarget", "emit"]


class CpuTarget(Protocol):
    """What code generation needs to know of the processor."""

    @property
    def isa(self) -> str: ...

    @property
    def vector_bytes(self) -> int: ...


def emit(kernel: Kernel, target: CpuTarget) -> str:
    """C++ source of ``kernel``: ``extern "C" int64_t NAME(void* b0, ..., int64_t s0, ...)``, for use after the prelude.

    The function returns 0, or the 1-based number of the failed Check, counted through its nests.
    """
    dtypes = {f"b{k}": d for k, d in enumerate(kernel.dtypes)}
    parts: list[str] = []
    main = Text(1)
    checks = 0
    for number, (nest, schedule) in enumerate(zip(kernel.nests, kernel.schedules, strict=True)):
        assert isinstance(schedule, Schedule), "the kernel is scheduled for a GPU"
        prefix = kernel.name if len(kernel.nests) == 1 else f"{kernel.name}_{number}"
        writer = _NestWriter(nest, schedule, dtypes, kernel.sizes, prefix, checks)
        writer.run(main)
        parts += writer.parts
        checks += sum(isinstance(e, Check) for e in nest.body)
    arguments = [f"void* {b}_" for b in dtypes] + [f"int64 {s}" for s in kernel.sizes]
    head = [f'extern "C" int64 {kernel.name}({", ".join(arguments)}) {{']
    head += [f"  {SHORT[d]}* const {b} = ({SHORT[d]}*){b}_;" for b, d in dtypes.items()]
    return "\n".join([*parts, *head, *main.lines, "  return 0;", "}", ""])


@dataclass(frozen=True, slots=True)
class _Partial:
    """A reduction over the shared loop, and the memory that holds each thread's share of it."""

    out: str
    position: int
    eqn: Reduce
    acc: Accumulator
    pointers: tuple[tuple[str, str], ...]
    array: Array | None


def _atomic(text: str) -> str:
    return text if text.isdigit() or text.isidentifier() else f"({text})"


def _settle(text: Text, written: Text) -> None:
    """Let what was written past the caches be there for other threads."""
    if any(" stream_" in line for line in written.lines):
        text.add("settle_streams();")


class _NestWriter(Region):
    """One nest: the code of the calling thread, and a function for each loop that threads share."""

    def __init__(
        self,
        nest: Nest,
        schedule: Schedule,
        dtypes: dict[str, str],
        sizes: tuple[str, ...],
        prefix: str,
        first_check: int,
    ) -> None:
        super().__init__(Facts(nest, schedule), dtypes, first_check)
        self.prefix, self.sizes = prefix, sizes
        self.parts: list[str] = []
        self.shared = Memory("memory")
        self.private: list[str] = []

    def run(self, main: Text) -> None:
        """Write the nest as a block of the kernel's function."""
        facts = self.facts
        goals = [Goal(p) for p, e in enumerate(facts.body) if isinstance(e, Store | Check)]
        inside = Text(main.depth + 1)
        scope = Scope(inside, self.shared, "return")
        self.region(scope, frozenset(), frozenset(), goals)
        shape = ", ".join(f"{a} < {facts.extent[a]}" for a in facts.order) or "a single point"
        main.open(f"{{  // {facts.schedule.kind}: {shape}")
        if facts.shared:
            points = index_text(prod(facts.extent.values()), {})
            main.add(f"const int64 threads = thread_count({points}, {facts.schedule.parallel});")
        if self.shared.total() != "0" or self.private:
            main.add(f"const int64 shared = {self.shared.total()}, own = {' + '.join(self.private) or '0'};")
            threads = "threads" if facts.shared else "1"
            main.add(f"char* const memory = scratch(shared + {threads} * own);")
        noted = any("{ failed = " in line for line in inside.lines)  # a vector's check leaves its lambda only
        if noted:
            main.add("int64 failed = 0;")
        for line in self.random_runs(inside):
            main.add(line)
        main.lines += inside.lines
        _settle(main, inside)
        if noted:
            main.add("if (failed) return failed;")
        main.close()

    # ---- the loop that threads share ----------------------------------------------------------------------------

    def group(
        self, scope: Scope, loop: int, opened: frozenset[str], known: frozenset[str], goals: list[Goal]
    ) -> set[str]:
        if loop != 0 or opened or not self.facts.shared:
            return super().group(scope, loop, opened, known, goals)
        ends = self.ending(0, goals)
        partials = [self.partial(scope, p) for p in ends]
        name = f"{self.prefix}_part{len(self.parts)}"
        params, args = self.parameters(known)
        for partial in partials:
            params += [f"{kind}* {pointer}" for pointer, kind in partial.pointers]
            args += [pointer for pointer, _ in partial.pointers]
        part, body, memory = Text(0), Text(1), Memory("own")
        params += ["char* own", "int64 begin", "int64 end", "int64 thread"]
        part.open(f"static int64 {name}({', '.join(params)}) {{")
        part.add("int64 failed = 0;")
        self.part(Scope(body, memory, "continue"), known, goals, partials)
        for line in self.random_runs(body):
            part.add(line)
        part.lines += body.lines
        _settle(part, body)
        part.add("return failed;")
        part.close()
        self.parts.append("\n".join([*part.lines, ""]))
        own = "nullptr"
        if memory.total() != "0":
            self.private.append(memory.total())
            own = "memory + shared + thread * own"
        call = ", ".join([*args, own, "begin", "end", "thread"])
        text = scope.text
        text.open(f"if (int64 failed = share({self.count()}, threads, [&](int64 begin, int64 end, int64 thread) {{")
        text.add(f"return {name}({call});")
        text.close("})) return failed;")
        for partial in partials:
            self.combine(text, partial)
        return {p.out for p in partials if not p.array}

    def part(self, scope: Scope, known: frozenset[str], goals: list[Goal], partials: list[_Partial]) -> None:
        """The work of one thread: points ``begin`` to ``end`` of the shared loop."""
        facts, text = self.facts, scope.text
        arrays = dict(self.arrays)
        for partial in partials:
            if partial.array:
                self.partial_begin(scope, partial)
            else:
                self.begin_reduce(scope, frozenset(), facts.schedule.outer[0], partial.position)
        self.partial_totals(scope, known, goals, partials)
        if self.whole():
            axis = facts.schedule.outer[0]
            extent = index_text(facts.extent[axis], {})
            text.add(f"const int64 {axis}_begin = begin * 64, {axis}_end = least(end * 64, {extent});")
            self.blocks[axis] = (f"{axis}_begin", f"{axis}_end")
            self.strip(scope, axis, frozenset(), known, goals, *self.blocks[axis])
            del self.blocks[axis]
        else:
            text.open("if (begin < end) {")
            self.shared_loop(scope, known, goals)
            text.close()
        for partial in partials:
            if not partial.array:
                self.partial_end(text, partial)
            elif partial.out in self.drains:
                total = self.drains.pop(partial.out)[1]
                text.add(self.drained(partial.out, total, "settle"))
        self.arrays = arrays

    def shared_loop(self, scope: Scope, known: frozenset[str], goals: list[Goal]) -> None:
        facts, text = self.facts, scope.text
        axes = list(facts.schedule.outer)
        counters = [(a, index_text(facts.extent[a], {})) for a in axes]
        for axis, tile in facts.tiles.items():
            counters.append((f"{axis}_tile", f"(({index_text(facts.extent[axis], {})} + {tile - 1}) / {tile})"))
        single = not facts.tiles and len(axes) == 1
        if single and self.row_blocks(scope, axes[0], "begin", "end", frozenset(), known, goals):
            return
        if len(counters) == 1:
            text.open(f"for (int64 {counters[0][0]} = begin; {counters[0][0]} < end; ++{counters[0][0]}) {{")
        else:
            text.add("int64 rest = begin;")
            for name, extent in reversed(counters[1:]):
                text.add(f"int64 {name} = rest % ({extent}); rest /= {_atomic(extent)};")
            text.add(f"int64 {counters[0][0]} = rest;")
            step = f"++{counters[0][0]}"
            for name, extent in counters[1:]:
                step = f"++{name} == {_atomic(extent)} ? ({name} = 0, {step}) : 0"
            text.open(f"for (int64 point = begin; point < end; ++point, ({step})) {{")
        for axis, tile in facts.tiles.items():
            extent = index_text(facts.extent[axis], {})
            text.add(f"const int64 {axis}_begin = {axis}_tile * {tile};")
            text.add(f"const int64 {axis}_end = least({axis}_begin + {tile}, {extent});")
            self.blocks[axis] = (f"{axis}_begin", f"{axis}_end")
        if len(facts.tiles) == 2:
            self.transposes(scope)
        opened = frozenset([*axes, *(f"{a}_tile" for a in facts.tiles)])
        self.region(Scope(text, scope.memory, "continue", scope.stack), opened, known, goals)
        for axis in facts.tiles:
            del self.blocks[axis]
        if single:
            self.drain_now_and_then(text, axes[0])
        text.close()

    def transposes(self, scope: Scope) -> None:
        """Turn the tiles of operands whose fast axis is not the vector axis, so that the loops read along rows."""
        facts = self.facts
        slow, fast = facts.tiles
        atoms = {a: Axis(a, facts.extent[a]) for a in (slow, fast)}
        for eqn in facts.body:
            if not isinstance(eqn, Load) or eqn.mask is not None:
                continue
            expr = eqn.index[0]
            pitch = expr.coefficient(atoms[fast])
            if pitch is None or pitch == 0 or pitch == 1 or expr.coefficient(atoms[slow]) != 1:
                continue
            if any(isinstance(a, Loaded) for a in expr.atoms()):
                continue
            kind = SHORT[self.write.dtypes[eqn.buffer]]
            name, rows, columns = f"{eqn.out}_turned", facts.tiles[slow], facts.tiles[fast]
            begins = ((slow, f"{slow}_begin"), (fast, f"{fast}_begin"))
            scope.text.add(f"alignas(64) {kind} {name}[{rows * columns}];")
            source = self.write.at(eqn.buffer, expr, dict(begins))
            counts = f"{slow}_end - {slow}_begin, {fast}_end - {fast}_begin"
            scope.text.add(f"transpose({name}, {columns}, {source}, {index_text(pitch, {})}, {counts});")
            self.arrays[eqn.out] = Array(name, (slow, fast), (str(rows), str(columns)), kind, begins)

    # ---- reductions over the shared loop: each thread its own, joined in the order of the threads ------------------

    def partial(self, scope: Scope, position: int) -> _Partial:
        """Memory for every thread's share of a reduction."""
        eqn = self.facts.body[position]
        assert isinstance(eqn, Reduce)
        out, acc = eqn.outs[0], self.accumulator(eqn)
        kept = self.facts.kept_axes(eqn)
        best = eqn.op in ("argmax", "argmin")
        kind = scalar_type(self.facts.dtype[eqn.value])
        pointers = [(f"{out}_part", kind), *([(f"{out}_place", "int64")] if best else [])]
        extents = tuple(_atomic(index_text(self.facts.extent[a], {})) for a in kept)
        array = Array(f"{out}_part", kept, extents, "flag" if kind == "bool" else kind)
        count = f"threads * {array.count()}" if kept else "threads"
        for pointer, held in pointers:
            scope.text.add(f"{held}* const {pointer} = {self.shared.take(held, count)};")
        return _Partial(out, position, eqn, acc, tuple(pointers), array if kept else None)

    def partial_begin(self, scope: Scope, partial: _Partial) -> None:
        """Point at the thread's own array and fill it with the start value."""
        array, text = partial.array, scope.text
        assert array is not None
        count = _atomic(array.count())
        mine = [(f"{partial.out}_own{'_at' if k else ''}", *p) for k, p in enumerate(partial.pointers)]
        for name, pointer, kind in mine:
            text.add(f"{kind}* const {name} = {pointer} + thread * {count};")
            start = self.start(partial.eqn) if pointer.endswith("_part") else "0"
            text.add(f"fill({name}, {count}, ({kind}){start});")
        own = replace(array, pointer=mine[0][0])
        lanes = self.facts.vector in partial.eqn.axes
        self.targets[partial.out] = "fold" if lanes else "array"
        self.arrays[partial.out] = own
        if len(mine) > 1:
            self.targets[partial.out] = "fold bests" if lanes else "bests"
            self.best_values[partial.out] = own
            self.arrays[partial.out] = replace(array, pointer=mine[1][0], kind="int64")

    def partial_totals(self, scope: Scope, known: frozenset[str], goals: list[Goal], partials: list[_Partial]) -> None:
        """Let long column sums go into the thread's own array a block of rows at a time."""
        kept = [p for p in partials if p.array and p.acc.exact]
        if not kept:
            return
        axis = self.facts.schedule.outer[0]
        rows = self.block_rows(axis, frozenset(), known, goals)
        for partial in kept:
            if self.long(axis, rows):
                own = self.arrays[partial.out]
                block = self.array(scope, f"{partial.out}_sum", own.axes, "f32")
                scope.text.add(f"fill({block.pointer}, {_atomic(block.count())}, 0.0f);")
                self.arrays[partial.out] = block
                self.begin_drain(scope, partial.out, axis, own)

    def partial_end(self, text: Text, partial: _Partial) -> None:
        """Hand over the thread's own result."""
        out = partial.out
        if partial.eqn.op in ("argmax", "argmin"):
            text.add(f"const auto {out}_b = {self.best_folded(partial.eqn)};")
            text.add(f"{out}_part[thread] = {out}_b.value;")
            text.add(f"{out}_place[thread] = {out}_b.at;")
        else:
            text.add(f"{out}_part[thread] = {self.finished(partial.eqn)};")

    def combine(self, text: Text, partial: _Partial) -> None:
        """Join the threads' results into the value the rest of the nest reads."""
        eqn, out, acc = partial.eqn, partial.out, partial.acc
        best = eqn.op in ("argmax", "argmin")
        if partial.array is None:
            kind = scalar_type(eqn.dtype)
            if best:
                text.add(f"{self.best(eqn, False)} {out}_t = {{{out}_part[0], {out}_place[0]}};")
                text.add(f"for (int64 t = 1; t < threads; ++t) {out}_t.join({out}_part[t], {out}_place[t]);")
                text.add(f"const {kind} {out} = {out}_t.at;  // {eqn.op} over {', '.join(eqn.axes)}")
                return
            text.add(f"{acc.scalar} {out}_t = {out}_part[0];")
            text.add(f"for (int64 t = 1; t < threads; ++t) {out}_t = {acc.join(f'{out}_t', f'{out}_part[t]', False)};")
            text.add(f"const {kind} {out} = {self.rounded(eqn, f'{out}_t')};  // {eqn.op} over {', '.join(eqn.axes)}")
            return
        count = _atomic(partial.array.count())
        text.open(f"for (int64 t = 1; t < threads; ++t) {{  // {eqn.op} over {', '.join(eqn.axes)}")
        text.open(f"for (int64 k = 0; k < {count}; ++k) {{")
        if best:
            text.add(f"{self.best(eqn, False)} b = {{{out}_part[k], {out}_place[k]}};")
            text.add(f"b.join({out}_part[t * {count} + k], {out}_place[t * {count} + k]);")
            text.add(f"{out}_part[k] = b.value;")
            text.add(f"{out}_place[k] = b.at;")
            self.arrays[out] = replace(partial.array, pointer=f"{out}_place", kind="int64")
        else:
            text.add(f"{out}_part[k] = {acc.join(f'{out}_part[k]', f'{out}_part[t * {count} + k]', False)};")
            self.arrays[out] = partial.array
        text.close()
        text.close()

    def parameters(self, known: frozenset[str]) -> tuple[list[str], list[str]]:
        """Buffers, sizes, and values and arrays of the calling thread, as parameters and as arguments."""
        facts = self.facts
        params = [f"{SHORT[d]}* {b}" for b, d in self.write.dtypes.items()] + [f"int64 {s}" for s in self.sizes]
        args = [*self.write.dtypes, *self.sizes]
        for value in sorted(known):
            params.append(f"{scalar_type(facts.dtype[value])} {value}")
            args.append(value)
        for array in self.arrays.values():
            params.append(f"{array.kind}* {array.pointer}")
            args.append(array.pointer)
        return params, args

    def count(self) -> str:
        """Number of points of the shared loop."""
        facts = self.facts
        if self.whole():
            return f"({index_text(facts.extent[facts.vector or ''], {})} + 63) / 64"
        counts = [index_text(facts.extent[a], {}) for a in facts.schedule.outer if a != facts.vector]
        for axis, tile in facts.tiles.items():
            counts.append(f"({index_text(facts.extent[axis], {})} + {tile - 1}) / {tile}")
        return " * ".join(c if c.isdigit() or c.isidentifier() else f"({c})" for c in counts)

    def whole(self) -> bool:
        """Whether the shared loop is the vector loop itself."""
        return self.facts.vector is not None and self.facts.vector in self.facts.schedule.outer
