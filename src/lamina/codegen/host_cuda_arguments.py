"""Addresses that kernels on a GPU are given, and what is known of them."""

from __future__ import annotations

from lamina.base.text import Writer
from lamina.codegen.host_reuse import own_results
from lamina.codegen.host_values import Names, Values
from lamina.ir.index import Expr
from lamina.ir.plan import Plan

__all__ = ["ALIGNMENT", "Arguments", "is_multiple"]

ALIGNMENT = 16
"""Bytes to which addresses are aligned for 16-byte accesses: kernels built for aligned inputs fail on others."""


def is_multiple(expr: Expr) -> bool:
    """Whether the number is a multiple of 16 whatever its sizes are."""
    return expr.const % ALIGNMENT == 0 and all(factor % ALIGNMENT == 0 for _, factor in expr.terms)


class Arguments:
    """Source texts for addresses; lines that they need before go into ``body``.

    With ``aligned`` false nothing is assumed of the addresses of inputs.
    """

    def __init__(self, plan: Plan, values: Values, names: Names, device: int, aligned: bool, body: Writer) -> None:
        self.values, self.names, self.device, self.aligned, self.body = values, names, device, aligned, body
        self._own_results = own_results(plan)
        self._checked: dict[str, str] = {}
        self._copied: dict[str, str] = {}

    def address(self, name: str, wanted: bool) -> str:
        """The address of a buffer's first element; ``wanted``: it would help if it were a multiple of 16."""
        values = self.values
        if not self.is_on_gpu(name):
            # A number that the program keeps on the CPU: the copy is queued like a launch.
            if name not in self._copied:
                self._copied[name] = self.names.fresh(f"{values.local(name)}_gpu")
                there = f'torch.device("cuda", {self.device})'
                self.body.line(f"{self._copied[name]} = {values.local(name)}.to({there}, non_blocking=True)")
            return f"{self._copied[name]}.data_ptr()"
        if values.places[name].where == "input" and wanted and self.aligned:
            return self._checked.setdefault(name, values.pointer(name))
        return values.address(name, self.body.line)

    def is_aligned(self, name: str) -> bool:
        """Whether the address is known to be a multiple of 16, or checked at the start of the call."""
        place = self.values.places[name]
        if not self.is_on_gpu(name) or place.where == "output":
            return True
        if place.where == "library":
            return name in self._own_results
        if place.where == "arena":
            return place.offset is not None and is_multiple(place.offset)
        return self.aligned

    def is_on_gpu(self, name: str) -> bool:
        """Whether a buffer is memory of a GPU."""
        return self.values.buffers[name].on_gpu

    def check(self, out: Writer) -> None:
        """Write, before ``args`` is emptied, that another program runs where an input is not what is assumed of it."""
        for name, variable in self._checked.items():
            out.line(f"{variable} = {self.values.local(name)}.data_ptr()")
        if self._checked:
            with out.indent(f"if ({' | '.join(self._checked.values())}) & {ALIGNMENT - 1}:"):
                out.line("return unaligned(args)")
