"""A kernel of the Plan as one C++ function; the text is complete but for the prelude."""

from __future__ import annotations

from lamina.base.target import Target
from lamina.codegen.cpp.expressions import SHORT
from lamina.codegen.cpp.nest import NestWriter
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.text import Text
from lamina.ir.loops import Check
from lamina.ir.plan import Kernel, Schedule

__all__ = ["emit"]


def emit(kernel: Kernel, target: Target) -> str:
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
        writer = NestWriter.of(NestAnalysis(nest, schedule, checks), dtypes, kernel.sizes, prefix)
        parts += writer.write(main)
        checks += sum(isinstance(e, Check) for e in nest.body)
    arguments = [f"void* {b}_" for b in dtypes] + [f"int64 {s}" for s in kernel.sizes]
    head = [f'extern "C" int64 {kernel.name}({", ".join(arguments)}) {{']
    head += [f"  {SHORT[d]}* const {b} = ({SHORT[d]}*){b}_;" for b, d in dtypes.items()]
    return "\n".join([*parts, *head, *main.lines, "  return 0;", "}", ""])
