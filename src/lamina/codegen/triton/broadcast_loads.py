"""Broadcast loads: operands of a row, such as a norm's weight, loaded once as a tile of equal rows before a loop.

Triton lays a tile out by how it is loaded. A row of few points is spread over all warps; beside a tile of several rows,
of which each warp has its own, it makes Triton lay the tile out anew, so that each sum of a row is put together by all
warps through shared memory. Loaded once before the loop as a tile of equal rows, it is where it is needed: layer norm's
backward takes a third of the instructions for rows of 96 or 192, half for 384, two thirds for 768, and spills nothing.
"""

from __future__ import annotations

from lamina.base.dtypes import DTYPES
from lamina.codegen.triton.nest_analysis import NestAnalysis
from lamina.ir.loops import Compute, Load

__all__ = ["broadcast_loads", "points_at_once"]

_WARP = 32
"""Threads of a warp on NVIDIA's GPUs."""
_ACCESS = 16
"""Bytes of one wide access of a thread."""


def broadcast_loads(facts: NestAnalysis) -> dict[int, int]:
    """Positions of such loads, and the block of rows each is repeated for."""
    if facts.rank != 2 or facts.schedule.warps == 1:
        return {}
    rows = [k for k in facts.dim if facts.blocks[k].role == "loop"]
    columns = [k for k in facts.dim if facts.blocks[k].role == "whole"]
    if len(rows) != 1 or len(columns) != 1:
        return {}
    (row,), (column,) = rows, columns
    at_once = points_at_once(facts, row, column)
    if at_once is None or facts.blocks[column].size >= at_once:
        return {}
    return {
        p: row
        for p, eqn in enumerate(facts.body)
        if isinstance(eqn, Load) and facts.eqn_span(eqn) == {column} and _meets_rows(eqn.out, row, facts)
    }


def points_at_once(facts: NestAnalysis, row: int, column: int) -> int | None:
    """Points that all warps load in one wide access each of what varies over both blocks; None if nothing does.

    Where a row has as many, each thread holds the same columns of all rows.
    """
    sizes = [
        DTYPES[e.dtype].size
        for e in facts.body
        if isinstance(e, Load) and facts.dims(facts.eqn_span(e)) == {row, column}
    ]
    return _WARP * facts.schedule.warps * max(_ACCESS // min(sizes), 1) if sizes else None


def _meets_rows(name: str, row: int, facts: NestAnalysis) -> bool:
    """Whether what is computed from a value is arithmetic on whole tiles in the end, and nothing else."""
    return all(
        isinstance(user, Compute) and (row in facts.eqn_span(user) or _meets_rows(user.out, row, facts))
        for user in facts.use_def.user_equations(name)
    )
