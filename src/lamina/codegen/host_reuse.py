"""Memory that an operand's last reader writes over: which outputs have that of which buffers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lamina.codegen.host_values import Values
from lamina.codegen.reuse import taken_over
from lamina.ir.library import may_alias
from lamina.ir.loops import Buffer, BufferView, LibraryCall, storage_bytes
from lamina.ir.plan import Plan

__all__ = ["own_results", "reused", "written_over"]

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


def written_over(values: Values, buffer: Buffer, old: str, otherwise: str | None, imports: set[str]) -> str:
    """Source text for the memory of ``old`` as that of ``buffer``; with an ``otherwise``, where the program finds
    that nobody else holds ``old``. Adds what it calls to ``imports``.
    """
    before, name = values.buffers[old], values.local(old)
    same = (before.shape, before.strides) == (buffer.shape, buffer.strides)
    taken = name if same else f"{name}.as_strided({values.dims(buffer.shape)}, {values.dims(buffer.strides)})"
    if otherwise is not None:
        taken += f" if only_owner(references({name}), {name}) else {otherwise}"
        imports.update(("only_owner", "references"))
    return f"{taken}  # its last reader writes it over"
