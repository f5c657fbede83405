"""Masked updates: only the elements of a library call's result that change are stored, in place.

``where(hidden, 0, result)`` reads all of the result and writes all of it again, most often as it was. On a GPU, where
nothing else needs the old values, only those that change are stored, in the memory that the call has filled.
"""

from __future__ import annotations

from dataclasses import replace

from lamina.base.decision import Decision
from lamina.base.dtypes import DTYPES
from lamina.ir.access import reads, writes
from lamina.ir.library import may_alias
from lamina.ir.loops import (
    BufferView,
    Compute,
    Equation,
    LibraryCall,
    Load,
    LoopProgram,
    Nest,
    Reduce,
    Scan,
    Store,
)
from lamina.ir.use_def import UseDef
from lamina.schedule import reasons
from lamina.schedule.in_place import renamed
from lamina.schedule.restrict import whole
from lamina.schedule.simplify import simplify

__all__ = ["overwrite_results"]


def overwrite_results(program: LoopProgram, numerics: str) -> tuple[LoopProgram, tuple[Decision, ...]]:
    """``program`` with such choices as stores under a condition, and what was decided about each."""
    decisions: list[Decision] = []
    calls = {
        out: step
        for step in program.steps
        if isinstance(step, LibraryCall) and not step.mutates
        for out in step.outs
        if out is not None
    }
    for step in program.steps if calls else ():
        found = _choice(step, program, calls, numerics) if isinstance(step, Nest) else None
        if found is None or not isinstance(step, Nest):
            continue
        old, new, nest = found
        program = _replaced(program, step, nest, old, new)
        decisions.append(Decision("in place", (new, old), True, reasons.CALL_RESULT_OVERWRITTEN()))
    return program, tuple(decisions)


def _choice(
    step: Nest, program: LoopProgram, calls: dict[str, LibraryCall], numerics: str
) -> tuple[str, str, Nest] | None:
    """(old buffer, new buffer, the nest that stores into the old one what differs), if that is all that step does."""
    if any(isinstance(e, Reduce | Scan) for e in step.body):
        return None
    body = simplify(step.body, numerics)
    stores = [e for e in body if isinstance(e, Store)]
    if len(stores) != 1 or stores[0].mask is not None or stores[0].mode != "set":
        return None
    store, use_def = stores[0], UseDef(body)
    narrow = use_def.compute(store.value, "cast")
    choice = use_def.compute(store.value if narrow is None else narrow.ins[0], "where")
    if choice is None:
        return None
    condition, taken, kept = choice.ins
    held = _loaded(kept, use_def)
    if (
        held is None
        or (narrow is not None and not _widens(held, choice))
        or held.index != store.index
        or held.buffer not in calls
    ):
        return None
    if not _may_share(held.buffer, store.buffer, step, program, calls[held.buffer]):
        return None
    if not whole(step, store, program.buffer_map()[store.buffer]):
        return None
    value = taken if narrow is None else f"{store.value}_taken"
    cast = () if narrow is None else (replace(narrow, out=value, ins=(taken,)),)
    late = replace(store, buffer=held.buffer, value=value, mask=condition)
    kernel = Nest(step.name, step.axes, _needed((*body[: body.index(store)], *cast, late)))
    if any(isinstance(e, Load) and e.buffer == held.buffer for e in kernel.body):
        return None
    return held.buffer, store.buffer, kernel


def _loaded(value: str, use_def: UseDef) -> Load | None:
    """The load that ``value`` is, through a widening that the store takes back."""
    cast = use_def.compute(value, "cast")
    eqn = use_def.definition(value if cast is None else cast.ins[0])
    return eqn if isinstance(eqn, Load) and eqn.mask is None else None


def _widens(held: Load, choice: Compute) -> bool:
    """Whether the choice is made in a wider type that holds each of the old values exactly."""
    before, during = DTYPES[held.dtype], DTYPES[choice.dtype]
    return before.is_float and during.is_float and during.size > before.size


def _may_share(old: str, new: str, step: Nest, program: LoopProgram, call: LibraryCall) -> bool:
    """Whether ``new`` may be where ``old`` is: nothing reads ``old`` afterwards, and no nest would have read ``new``
    together with what makes it.
    """
    buffers = program.buffer_map()
    a, b = buffers[old], buffers[new]
    if may_alias(call.op) or not a.on_gpu or a.kind == "input" or b.kind == "input":
        return False
    if (a.dtype, a.shape, a.strides, a.device) != (b.dtype, b.shape, b.strides, b.device):
        return False
    if any(isinstance(o, BufferView) and o.buffer == old for o in program.outputs):
        return False
    at = program.steps.index(step)
    for k, other in enumerate(program.steps):
        if other is step or other is call:
            continue
        if old in writes(other) or new in writes(other) or (k > at and old in reads(other)):
            return False
        if isinstance(other, Nest) and new in reads(other):
            return False
    return True


def _needed(body: tuple[Equation, ...]) -> tuple[Equation, ...]:
    """What the store at the end needs."""
    return tuple(body[p] for p in UseDef(body).backward_slice([len(body) - 1]))


def _replaced(program: LoopProgram, step: Nest, nest: Nest, old: str, new: str) -> LoopProgram:
    """``program`` with ``nest`` for ``step``, and ``old`` wherever it says ``new``."""
    steps = tuple(nest if s is step else renamed(s, {new}, old) for s in program.steps)
    kinds = program.buffer_map()
    held = replace(kinds[old], kind=kinds[new].kind)
    buffers = tuple(held if b.name == old else b for b in program.buffers if b.name != new)
    outputs = tuple(
        replace(o, buffer=old) if isinstance(o, BufferView) and o.buffer == new else o for o in program.outputs
    )
    return replace(program, steps=steps, buffers=buffers, outputs=outputs)
