"""Memory of outputs in host programs for GPUs: fresh, or that of an operand whose last reader writes it over."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lamina.codegen.host_globals import Globals
from lamina.codegen.host_values import Values
from lamina.codegen.reuse import taken_over
from lamina.ir.library import may_alias
from lamina.ir.loops import Buffer, BufferView, LibraryCall, storage_bytes
from lamina.ir.plan import Plan

__all__ = ["CudaMemory", "own_results", "reused"]

_WORTH_ASKING = 1 << 20
"""Bytes from which it is worth asking whether an input's memory may be taken over."""


def own_results(plan: Plan) -> frozenset[str]:
    """The results of library calls that are memory of their own."""
    calls = [step for step in plan.steps if isinstance(step, LibraryCall) and not may_alias(step.op)]
    return frozenset(out for step in calls for out in step.outs if out is not None)


def reused(plan: Plan, last: Mapping[str, int], donated: Collection[str]) -> tuple[dict[str, str], frozenset[str]]:
    """Of outputs that take over the memory of another buffer, which one; and the inputs that are such, if the call
    finds that nobody else holds them. ``last`` is the last step that uses each buffer.
    """
    returned = {o.buffer for o in plan.outputs if isinstance(o, BufferView)}
    places, fresh = {p.buffer: p for p in plan.places}, own_results(plan)
    own = {p.buffer for p in plan.places if p.where == "output" or (p.where == "library" and p.buffer in fresh)}
    sizes = {b.name: storage_bytes(b) for b in plan.buffers if b.name in donated}
    asked = frozenset(name for name, size in sizes.items() if size.is_int and size.const >= _WORTH_ASKING)
    # Only what is allocated here can be given the memory of something else.
    found = {
        new: old
        for new, old in taken_over(plan, own | asked, last).items()
        if places[new].where == "output" and old not in returned
    }
    return found, asked


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
