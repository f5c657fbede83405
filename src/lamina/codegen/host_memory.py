"""Memory of buffers of their own in host programs for the CPU: fresh, or that of an operand written over."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lamina.codegen.host_globals import Globals
from lamina.codegen.host_reuse import reused, written_over
from lamina.codegen.host_values import Values
from lamina.ir.access import views
from lamina.ir.library import may_alias
from lamina.ir.loops import Buffer, BufferView, LibraryCall, storage_bytes
from lamina.ir.plan import Plan

__all__ = ["CpuMemory"]

_LARGE = 1 << 20
"""Bytes from which fresh memory is worth asking the runtime's pool of blocks for."""


@dataclass(frozen=True, slots=True)
class CpuMemory:
    """Memory of results and of large ``temporary`` buffers. Names in ``imports`` the functions that give it.

    ``taken_over`` has the buffer whose memory another takes over; of those in ``asked`` the program finds out first
    whether anybody else holds them.
    """

    values: Values
    globals: Globals
    temporary: Collection[str]
    taken_over: Mapping[str, str]
    asked: Collection[str]
    imports: set[str]

    @classmethod
    def of(
        cls,
        plan: Plan,
        last: Mapping[str, int],
        donated: Collection[str],
        values: Values,
        globals_: Globals,
        imports: set[str],
    ) -> CpuMemory:
        """The memory of a plan's buffers; ``last`` is the last step that uses each, ``donated`` are inputs whose memory
        may be written over if nobody else holds it.
        """
        temporary = _temporary(plan)
        found, asked = reused(plan, last, donated)
        # The storage of a temporary may be larger than it is, and what was saved is the engine's: no results in those.
        inside = {new: old for new, old in found.items() if new in temporary or old not in {*temporary, *asked}}
        return cls(values, globals_, temporary, inside, asked, imports)

    def empty(self, buffer: Buffer) -> str:
        """Source text for the memory of a buffer."""
        old = self.taken_over.get(buffer.name)
        if old is None:
            return self._fresh(buffer)
        otherwise = self._fresh(buffer) if old in self.asked else None
        return written_over(self.values, buffer, old, otherwise, self.imports)

    def _fresh(self, buffer: Buffer) -> str:
        values, nbytes = self.values, storage_bytes(buffer)
        name = "empty" if not nbytes.is_int else "empty_small" if nbytes.const < _LARGE else "empty_large"
        if name == "empty_large" and buffer.name in self.temporary:
            name = "empty_temporary"
        self.imports.add(name)
        size = f", {nbytes.const}" if name in ("empty_large", "empty_temporary") else ""
        dtype = self.globals.dtype(buffer.dtype)
        return f"{name}({values.dims(buffer.shape)}, {values.dims(buffer.strides)}, {dtype}{size})"


def _temporary(plan: Plan) -> frozenset[str]:
    """Buffers with memory of their own of which nothing that the call returns can be a part."""
    seen = {o.buffer for o in plan.outputs if isinstance(o, BufferView)}
    for step in plan.steps:
        if isinstance(step, LibraryCall) and may_alias(step.op):
            seen.update(view.buffer for view in views(step))
    return frozenset(p.buffer for p in plan.places if p.where == "output" and p.buffer not in seen)
