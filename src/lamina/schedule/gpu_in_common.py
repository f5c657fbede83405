"""Rows of which a program takes several because they have operands in common that no wide access reads."""

from __future__ import annotations

from lamina.base.dtypes import DTYPES
from lamina.ir.index import as_expr
from lamina.ir.loops import Load, Store
from lamina.ir.plan import Block, GpuSchedule
from lamina.schedule.gpu_facts import ROWS_IN_COMMON, NestFacts, even_tile, power, warps_for

__all__ = ["apart_in_common", "rows_in_common", "whole_accesses"]


def apart_in_common(facts: NestFacts, run: tuple[str, ...], row: str) -> bool:
    """Whether rows along ``run`` have several operands in common whose elements lie apart: each is asked for by itself.

    H200, box IoU of 4096 x 4096 in bfloat16, four numbers of each box: rows one by one 137 us, four or eight together
    24; float32 140, eight 47.
    """
    found = 0
    for eqn in facts.nest.body:
        if isinstance(eqn, Load) and row not in facts.values[eqn.out] and facts.values[eqn.out] & set(run):
            found += not any(eqn.index[0].coefficient(facts.axis[a]) in (1, -1) for a in run)
    return found > 1


def rows_in_common(facts: NestFacts, run: tuple[str, ...], rest: list[str]) -> GpuSchedule:
    """Tiles of eight rows: each thread takes two wide accesses, and reads what its rows have in common once."""
    *outer, row = rest
    across = even_tile(facts.size(run), 512 // facts.bytes())
    high = min(2 * ROWS_IN_COMMON, power(facts.size((row,))))
    blocks = (
        *((Block(tuple(outer), 1, "grid"),) if outer else ()),
        Block((row,), high, "grid"),
        Block(run, across, "grid"),
    )
    warps = warps_for(across * high, 32 // facts.bytes())
    return GpuSchedule("pointwise", blocks, warps=warps, approximate=facts.approximate)


def whole_accesses(facts: NestFacts) -> bool:
    """Whether all that is contiguous along the last axis begins, at each row, where 16-byte accesses may."""
    fast = facts.fast
    if fast is None or not facts.known((fast,)) or facts.size((fast,)) * facts.bytes() % 16:
        return False
    for eqn in facts.nest.body:
        if not isinstance(eqn, Load | Store) or fast not in eqn.index[0].axes():
            continue
        rest = eqn.index[0] - as_expr(facts.axis[fast])
        begins = [rest.const, *(factor for _, factor in rest.terms)]
        if fast in rest.axes() or any(n * DTYPES[facts.dtypes[eqn.buffer]].size % 16 for n in begins):
            return False
    return True
