"""A plan whose temporaries share no memory, and which of them do so in the plan although both are needed."""

from __future__ import annotations

from dataclasses import replace

from lamina.ir.index import Expr, as_expr
from lamina.ir.loops import BufferView, storage_bytes
from lamina.ir.plan import Plan
from lamina.schedule.memory import ALIGNMENT, live_ranges

__all__ = ["overlapping", "unshared"]


def unshared(plan: Plan) -> Plan:
    """The plan with temporaries one behind the other."""
    buffers, end, places = plan.buffer_map(), as_expr(0), []
    for place in plan.places:
        if place.where == "arena":
            place = replace(place, offset=end)
            end = end + _whole_lines(storage_bytes(buffers[place.buffer]))
        places.append(place)
    return replace(plan, places=tuple(places), arena_bytes=end)


def _whole_lines(size: Expr) -> Expr:
    """Enough bytes for ``size``, a multiple of the alignment."""
    if size.is_int:
        return as_expr(-(-size.const // ALIGNMENT) * ALIGNMENT)
    return size * ALIGNMENT


def overlapping(plan: Plan) -> list[tuple[str, str]]:
    """Pairs of temporaries of known size that share bytes and are needed at the same time."""
    buffers = plan.buffer_map()
    spans, _ = live_ranges(plan.steps, {o.buffer for o in plan.outputs if isinstance(o, BufferView)})
    taken: list[tuple[str, int, int]] = []
    found: list[tuple[str, str]] = []
    for place in plan.places:
        size = storage_bytes(buffers[place.buffer])
        if place.where != "arena" or place.offset is None or not (place.offset.is_int and size.is_int):
            continue
        start, end = place.offset.const, place.offset.const + size.const
        first, last = spans[place.buffer]
        for other, begin, stop in taken:
            if start < stop and begin < end and spans[other][0] <= last and first <= spans[other][1]:
                found.append((other, place.buffer))
        taken.append((place.buffer, start, end))
    return found
