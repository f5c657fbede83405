"""What rows have in common, such as a norm's weight, read before the rows are reduced.

A reduction across warps waits for all of them. What is read behind it, Triton reads there: the program waits for memory
once more, at its end (H200, 4096 columns: dropout, residual and layer norm 114.0 us, 112.2 with its weights read early,
with its backward 299.5 and 295.1; layer norm 72.2 and 71.9; rows of 768 columns 19.6 and 19.3).
"""

from __future__ import annotations

from collections.abc import Sequence

from lamina.base.dtypes import DTYPES
from lamina.codegen.triton.facts import Facts
from lamina.ir.loops import Load, Reduce, operands

__all__ = ["read_early"]

_MOST = 256
"""Bytes that a thread may hold of what is read early, a quarter of its registers."""


def read_early(facts: Facts, order: Sequence[int]) -> list[int]:
    """The positions of ``order`` with loads of operands in common put before the first reduction of rows in registers.

    As many as fit into ``_MOST`` bytes a thread.
    """
    first = next((n for n, p in enumerate(order) if isinstance(facts.body[p], Reduce)), len(order))
    if facts.schedule.kind != "rows" or facts.loops:
        return list(order)
    shared = {k for k, block in enumerate(facts.blocks) if block.role != "whole"}
    moved: list[int] = []
    room = _MOST * 32 * facts.schedule.warps
    for p in order[first:]:
        eqn = facts.body[p]
        if not isinstance(eqn, Load) or operands(eqn) or facts.eqn_span(eqn) & shared:
            continue
        nbytes = DTYPES[facts.buffers[eqn.buffer]].size
        for k in facts.eqn_span(eqn):
            nbytes *= facts.blocks[k].size
        if nbytes <= room:
            moved.append(p)
            room -= nbytes
    return [*order[:first], *moved, *(p for p in order[first:] if p not in moved)]
