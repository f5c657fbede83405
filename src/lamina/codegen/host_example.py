"""The main block of a host program that runs alone: random inputs of the planned shapes and strides."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.base.text import Writer, tuple_text
from lamina.ir.index import Expr, Size
from lamina.ir.loops import SizeInput
from lamina.ir.plan import Plan

__all__ = ["example_block"]

_EXAMPLE = '''\
def example(shape, strides, dtype):
    """Random numbers; small integers, which are valid as indices into anything that has two elements."""
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides)) if 0 not in shape else 0
    if dtype.is_floating_point or dtype.is_complex:
        memory = torch.randn(span).to(dtype)
    else:
        memory = torch.randint(0, 2, (span,)).to(dtype)
    return memory.as_strided(shape, strides)


'''


def example_block(plan: Plan, sizes: Mapping[str, int]) -> str:
    """Source text that calls ``call`` on example inputs and prints its outputs. Sizes without a value are 8."""
    buffers = plan.buffer_map()

    def number(expr: Expr) -> str:
        names = {atom.name for atom in expr.atoms() if isinstance(atom, Size)}
        return str(int(expr.evaluate({name: sizes.get(name, 8) for name in names})))

    out = Writer()
    out.line(_EXAMPLE.rstrip("\n"))
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
        with out.indent("for result in call(inputs):"):
            out.line("print(result)")
    return out.text()
