"""The main block of a host program that runs alone: random inputs of the planned shapes and strides."""

from __future__ import annotations

import math
from collections.abc import Mapping

from lamina.base.dtypes import DTYPES
from lamina.base.text import Writer, tuple_text
from lamina.ir.index import Expr, Size
from lamina.ir.loops import Buffer, SizeInput
from lamina.ir.plan import KernelCall, Plan

__all__ = ["EXAMPLE", "example_block"]

EXAMPLE = '''\
def example(shape, strides, dtype):
    """Random numbers; small integers, which are valid as indices into anything that has two elements."""
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides)) if 0 not in shape else 0
    if dtype.is_floating_point or dtype.is_complex:
        memory = torch.randn(span).to(dtype)
    else:
        memory = torch.randint(0, 2, (span,)).to(dtype)
    return memory.as_strided(shape, strides)


'''


def example_block(plan: Plan, sizes: Mapping[str, int], times: bool = False) -> str:
    """Source text that calls ``call`` on example inputs and prints its outputs. Sizes without a value are 8.

    With ``times`` the kernels, which must be ``timed``, are run again and their times printed.
    """
    buffers = plan.buffer_map()

    def number(expr: Expr) -> str:
        names = {atom.name for atom in expr.atoms() if isinstance(atom, Size)}
        return str(int(expr.evaluate({name: sizes.get(name, 8) for name in names})))

    def nbytes(buffer: Buffer) -> int:
        pairs = zip(buffer.shape, buffer.strides, strict=True)
        return math.prod(int(number(n)) for n, stride in pairs if number(stride) != "0") * DTYPES[buffer.dtype].size

    out = Writer()
    out.line(EXAMPLE.rstrip("\n"))
    out.line()
    out.line()
    with out.indent('if __name__ == "__main__":'):
        out.line("torch.manual_seed(0)")
        with out.indent("inputs = [", "]"):
            for item in plan.inputs:
                if isinstance(item, str):
                    buffer = buffers[item]
                    shape, strides = (tuple_text(map(number, e)) for e in (buffer.shape, buffer.strides))
                    out.line(f"example({shape}, {strides}, torch.{buffer.dtype}),  # {item}")
                elif isinstance(item, SizeInput):
                    out.line(f"{number(item.expr)},  # {item.name}")
                else:
                    out.line("None,")
        with out.indent("for result in call(list(inputs)):"):
            out.line("print(result)")
        if times and plan.kernels:
            with out.indent("launches = [", "]"):
                for step in plan.steps:
                    if isinstance(step, KernelCall):
                        out.line(f'("{step.kernel}", {sum(nbytes(buffers[b]) for b in dict.fromkeys(step.buffers))}),')
            with out.indent("with torch.no_grad():"):
                out.line("print_times(kernels, launches, lambda: call(list(inputs)))")
    return out.text()
