"""The memory of a region over its steps, as the plan places its buffers."""

from __future__ import annotations

from typing import Any

from lamina.ir.access import reads, writes
from lamina.ir.loops import BufferView
from lamina.ir.plan import KernelCall, Plan
from lamina.ir.work import Sizes

__all__ = ["memory_of"]


def memory_of(plan: Plan, sizes: Sizes) -> dict[str, Any]:
    """Bytes alive at each step: temporaries, results that the caller gets, and inputs; and how large the arena is.

    ``buffers`` are those that the region makes, each with the steps (from, to) between which it is needed.
    """
    buffers = plan.buffer_map()
    place = {p.buffer: p for p in plan.places}
    returned = {view.buffer for view in plan.outputs if isinstance(view, BufferView)}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, step in enumerate(plan.steps):
        written = set(step.writes) if isinstance(step, KernelCall) else writes(step)
        read = set(step.buffers) if isinstance(step, KernelCall) else reads(step)
        for name in written | read:
            first.setdefault(name, number)
            last[name] = number
    end = max(len(plan.steps) - 1, 0)
    made = []
    temporary, results = [0] * len(plan.steps), [0] * len(plan.steps)
    for name in first:
        where = place[name].where if name in place else "input"
        if where == "input" or name not in buffers:
            continue
        until = end if name in returned else last[name]
        size = sizes.bytes(buffers[name])
        offset = place[name].offset
        made.append(
            {
                "name": name,
                "bytes": size,
                "from": first[name],
                "to": until,
                "where": where,
                "offset": None if offset is None else sizes(offset),
            }
        )
        series = results if name in returned else temporary
        for number in range(first[name], until + 1):
            series[number] += size
    inputs = sum(sizes.bytes(buffers[n]) for n, p in place.items() if p.where == "input" and n in buffers)
    return {
        "inputs": inputs,
        "arena": sizes(plan.arena_bytes),
        "temporary": temporary,
        "results": results,
        "buffers": made,
    }
