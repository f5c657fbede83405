"""What a host program is called with: inputs to locals, and sizes that no input of their own gives."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.base.text import Writer
from lamina.codegen.host_values import Values
from lamina.errors import InvalidIR
from lamina.ir.index import Expr, Size
from lamina.ir.loops import SizeInput
from lamina.ir.plan import Plan

__all__ = ["Inputs"]


class Inputs:
    """Writes how the list ``args`` is taken apart. ``last`` has the buffers that steps or results use.

    Inputs have their names from the start, so that others give way. To be asked once all else is written: only sizes
    that are used are looked up.
    """

    def __init__(self, plan: Plan, values: Values, last: Mapping[str, int]) -> None:
        self.plan, self.values, self.last = plan, values, last
        self._bound: set[str] = set()
        for item in plan.inputs:
            if isinstance(item, str):
                values.local(item)

    def unpack(self, out: Writer) -> None:
        """Write the assignment of ``args`` to variables; ``args`` still holds the inputs after it."""
        targets: list[str] = []
        for item in self.plan.inputs:
            if isinstance(item, str):
                targets.append(self.values.local(item))
            elif isinstance(item, SizeInput) and (name := _symbol(item.expr)) and name not in self._bound:
                self._bound.add(name)
                targets.append(self.values.size_name(name))
            else:
                targets.append("_")
        if targets:
            out.unpack(targets, "args")

    def release(self, out: Writer) -> None:
        """Write that ``args`` is emptied, sizes from the shapes of tensors, and that unused inputs are let go."""
        out.line("args.clear()")
        asked: set[str] = set()
        for name in sorted(self.values.used_sizes - self._bound):
            item, text = self._size(name)
            asked.add(item)
            out.line(f"{self.values.size_name(name)} = {text}")
        names = [n for n in self.plan.inputs if isinstance(n, str) and n not in self.last and n not in asked]
        if names:
            out.line(f"del {', '.join(self.values.local(n) for n in names)}")

    def _size(self, name: str) -> tuple[str, str]:
        """An input whose shape or strides give a size, and the source text for it."""
        given = [self.values.buffers[item] for item in self.plan.inputs if isinstance(item, str)]
        # Shapes first: the step along a dimension of one element may be any number.
        places = [("size", b.name, dim, expr) for b in given for dim, expr in enumerate(b.shape)]
        places += [("stride", b.name, dim, expr) for b in given for dim, expr in enumerate(b.strides)]
        for method, item, dim, expr in places:
            if _symbol(expr) == name:
                return item, f"{self.values.local(item)}.{method}({dim})"
        raise InvalidIR(f"no input of region {self.plan.name} gives the size {name}")


def _symbol(expr: Expr) -> str | None:
    """The name of a plain size symbol."""
    if len(expr.terms) == 1 and not expr.const:
        (mono, factor) = expr.terms[0]
        if factor == 1 and len(mono) == 1 and isinstance(mono[0], Size):
            return mono[0].name
    return None
