"""Memory of outputs in host programs for GPUs: fresh, or that of an operand whose last reader writes it over."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lamina.codegen.host_globals import Globals
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
        values = self.values
        if buffer.name not in self.taken_over:
            return self._fresh(buffer)
        old = values.buffers[self.taken_over[buffer.name]]
        same = (old.shape, old.strides) == (buffer.shape, buffer.strides)
        shaped = "" if same else f".as_strided({values.dims(buffer.shape)}, {values.dims(buffer.strides)})"
        taken = f"{values.local(old.name)}{shaped}"
        if old.name in self.asked:
            name = values.local(old.name)
            taken += f" if only_owner(references({name}), {name}) else {self._fresh(buffer)}"
            self.imports.update(("only_owner", "references"))
        return f"{taken}  # its last reader writes it over"

    def _fresh(self, buffer: Buffer) -> str:
        values = self.values
        name = "empty" if buffer.on_gpu else "empty_cpu"
        self.imports.add(name)
        shape, strides = values.dims(buffer.shape), values.dims(buffer.strides)
        return f"{name}({shape}, {strides}, {self.globals.dtype(buffer.dtype)})"
