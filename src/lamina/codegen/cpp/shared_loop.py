"""The loop that threads share: a function for the points of one thread, and the call that hands points out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.codegen.cpp.arrays import Arrays
from lamina.codegen.cpp.definitions import random_runs
from lamina.codegen.cpp.expressions import SHORT, scalar_type
from lamina.codegen.cpp.loops import Inside, Loops
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.partials import Partial, Partials
from lamina.codegen.cpp.text import LoopBody, Memory, Scope, Text, settle_streams
from lamina.codegen.cpp.thread_loop import ThreadLoop

__all__ = ["SharedLoop"]


class SharedLoop:
    """Writes a nest's shared loops. Collects their functions, and the scratch memory that a thread of each needs.

    ``sizes`` are the kernel's run-time sizes, ``prefix`` begins the functions' names.
    """

    def __init__(
        self,
        facts: NestAnalysis,
        dtypes: Mapping[str, str],
        sizes: Sequence[str],
        prefix: str,
        arrays: Arrays,
        loops: Loops,
        partials: Partials,
        thread_loop: ThreadLoop,
    ) -> None:
        self.facts, self.dtypes, self.sizes, self.prefix = facts, dtypes, sizes, prefix
        self.arrays, self.loops, self.partials, self.thread_loop = arrays, loops, partials, thread_loop
        self.functions: list[str] = []
        self.private: list[str] = []

    def write(self, scope: Scope, loop_body: LoopBody, inside: Inside) -> set[str]:
        """Write the shared loop for the goals of ``loop_body``; the reductions whose results exist after it."""
        partials = [self.partials.allocate(scope.text, p) for p in self.loops.ending(0, loop_body)]
        name = f"{self.prefix}_part{len(self.functions)}"
        params, args = self._parameters(loop_body.known)
        for partial in partials:
            params += [f"{kind}* {pointer}" for pointer, kind in partial.pointers]
            args += [pointer for pointer, _ in partial.pointers]
        memory = self._function(name, params, loop_body, partials, inside)
        own = "nullptr"
        if memory.total() != "0":
            self.private.append(memory.total())
            own = "memory + shared + thread * own"
        call, text = ", ".join([*args, own, "begin", "end", "thread"]), scope.text
        points = self.thread_loop.count()
        text.open(f"if (int64 failed = share({points}, threads, [&](int64 begin, int64 end, int64 thread) {{")
        text.add(f"return {name}({call});")
        text.close("})) return failed;")
        for partial in partials:
            self.partials.combine(text, partial)
        return {p.out for p in partials if not p.array}

    def _function(
        self, name: str, params: Sequence[str], loop_body: LoopBody, partials: Sequence[Partial], inside: Inside
    ) -> Memory:
        """Write the function for points ``begin`` to ``end``; the scratch memory that it takes."""
        function, body, memory = Text(0), Text(1), Memory("own")
        last = ["char* own", "int64 begin", "int64 end", "int64 thread"]
        function.open(f"static int64 {name}({', '.join([*params, *last])}) {{")
        function.add("int64 failed = 0;")
        scope = Scope(body, memory, "continue")
        with self.arrays.apart():
            self.partials.begin(scope, partials, loop_body)
            self.thread_loop.write(scope, loop_body, inside)
            for partial in partials:
                self.partials.end(body, partial)
        for line in random_runs(self.facts, body):
            function.add(line)
        function.lines += body.lines
        settle_streams(function, body)
        function.add("return failed;")
        function.close()
        self.functions.append("\n".join([*function.lines, ""]))
        return memory

    def _parameters(self, known: frozenset[str]) -> tuple[list[str], list[str]]:
        """Buffers, sizes, and values and arrays of the calling thread, as parameters and as arguments."""
        params = [f"{SHORT[d]}* {b}" for b, d in self.dtypes.items()] + [f"int64 {s}" for s in self.sizes]
        args = [*self.dtypes, *self.sizes]
        for value in sorted(known):
            params.append(f"{scalar_type(self.facts.dtype[value])} {value}")
            args.append(value)
        for array in self.arrays.all():
            params.append(f"{array.kind}* {array.pointer}")
            args.append(array.pointer)
        return params, args
