"""Memory of outputs in host programs for GPUs: fresh, or that of an operand whose last reader writes it over."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lamina.codegen.host_globals import Globals
from lamina.codegen.host_reuse import written_over
from lamina.codegen.host_values import Values
from lamina.ir.loops import Buffer

__all__ = ["CudaMemory"]


@dataclass(frozen=True, slots=True)
class CudaMemory:
    """The memory of outputs. Names in ``imports`` the functions that it calls.

    ``taken_over`` has the buffer whose memory an output takes over; of those in ``asked`` the program finds out first
    whether anybody else holds them.
    """

    values: Values
    globals: Globals
    taken_over: Mapping[str, str]
    asked: Collection[str]
    imports: set[str]

    def empty(self, buffer: Buffer) -> str:
        """Source text for the memory of a buffer."""
        old = self.taken_over.get(buffer.name)
        if old is None:
            return self._fresh(buffer)
        otherwise = self._fresh(buffer) if old in self.asked else None
        return written_over(self.values, buffer, old, otherwise, self.imports)

    def _fresh(self, buffer: Buffer) -> str:
        values = self.values
        name = "empty" if buffer.on_gpu else "empty_cpu"
        self.imports.add(name)
        shape, strides = values.dims(buffer.shape), values.dims(buffer.strides)
        return f"{name}({shape}, {strides}, {self.globals.dtype(buffer.dtype)})"
