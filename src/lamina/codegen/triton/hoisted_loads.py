"""Hoisted loads: operands that rows have in common, such as a norm's weight, are loaded before the rows are reduced.

A reduction across warps waits for all of them. What is read behind it, Triton reads there: the program waits for memory
once more, at its end (H200, 4096 columns, four warps: dropout, residual and layer norm 114.0 us, 112.2 with its weights
read early, with its backward 299.5 and 295.1; layer norm 72.6 and 71.9; rows of 768 columns 19.6 and 19.3). With twice
the points a thread it costs registers that rows in flight need (two warps: layer norm 72.2 and 72.4, RMS norm with
residual and its backward 284 and 301).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lamina.base.dtypes import DTYPES
from lamina.codegen.triton.nest_analysis import NestAnalysis
from lamina.ir.loops import Load, Reduce, operands

__all__ = ["hoisted_loads"]

_POINTS = 32
"""Most points of a row's tile that a thread holds beside what is read early."""
_BYTES = 256
"""Most bytes of that a thread holds, a quarter of its registers."""


def hoisted_loads(facts: NestAnalysis, order: Sequence[int]) -> list[int]:
    """The positions of ``order``, loads of operands in common before the first reduction of rows in registers."""
    first = next((n for n, p in enumerate(order) if isinstance(facts.body[p], Reduce)), len(order))
    threads = 32 * facts.schedule.warps
    if facts.schedule.kind != "rows" or facts.loops or prod(b.size for b in facts.blocks) > _POINTS * threads:
        return list(order)
    shared = {k for k, block in enumerate(facts.blocks) if block.role != "whole"}
    moved: list[int] = []
    room = _BYTES * threads
    for p in order[first:]:
        eqn = facts.body[p]
        if not isinstance(eqn, Load) or operands(eqn) or facts.eqn_span(eqn) & shared:
            continue
        nbytes = DTYPES[facts.buffers[eqn.buffer]].size * prod(facts.blocks[k].size for k in facts.eqn_span(eqn))
        if nbytes <= room:
            moved.append(p)
            room -= nbytes
    return [*order[:first], *moved, *(p for p in order[first:] if p not in moved)]
