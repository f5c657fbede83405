"""Reductions on a GPU over rows that begin where no wide access may: an element at a time, and nothing is read ahead.

What a loop reads ahead goes to shared memory by copies of up to 16 bytes; of rows that begin anywhere they have four,
or there are none (16-bit numbers). Plain loads of short tiles by many threads are several times as fast.
"""

from __future__ import annotations

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Loaded
from lamina.ir.loops import Load
from lamina.ir.plan import Block, GpuSchedule
from lamina.schedule.column_tiles import COLUMNS
from lamina.schedule.gpu_facts import NestFacts, filled, power, warps_for

__all__ = ["broadcasts", "columns_in_pieces", "half_run_is_faster", "read_in_pieces", "side"]

_HALF_RUN = 0.94
"""Speed of tiles 32 columns of four bytes wide, as a share of wider ones'."""


def half_run_is_faster(width: int, across: int) -> bool:
    """Whether tiles half as wide as ``across`` columns of 32-bit numbers have so few points beyond the last column."""
    return filled(width, across) < _HALF_RUN * filled(width, across // 2)


def side(width: int) -> int:
    """Columns of 32-bit numbers that a program reduces side by side, of ``width``."""
    across = min(power(width), COLUMNS)
    return across // 2 if half_run_is_faster(width, across) else across


def read_in_pieces(facts: NestFacts) -> bool:
    """Whether most of what is read lies in rows that begin anywhere, or at places that are loaded for each point.

    Axes along which a row goes on begin none.
    """
    wide = pieces = 0
    on = {a: facts.size(facts.run()[k + 1 :]) for k, a in enumerate(facts.run())} if facts.fast is not None else {}
    for eqn in facts.nest.body:
        if not isinstance(eqn, Load) or facts.fast is None or facts.fast not in (axes := eqn.index[0].axes()):
            continue
        places = frozenset[str]().union(*(facts.values[a.name] for a in eqn.index[0].atoms() if isinstance(a, Loaded)))
        if facts.size(axes | places) * 8 >= facts.size(facts.names):
            nbytes = DTYPES[facts.dtypes[eqn.buffer]].size
            steps = [(eqn.index[0].coefficient(facts.axis[a]), on.get(a)) for a in axes]
            apart = any(s is not None and s.is_int and s != beside and s.const * nbytes % 16 for s, beside in steps)
            apart = apart or facts.fast in places
            wide, pieces = wide + nbytes * (not apart), pieces + nbytes * apart
    return pieces > wide


def broadcasts(facts: NestFacts, inner: frozenset[str]) -> bool:
    """Whether a loop over rows of several axes loads what does not vary along the fast one.

    Such a number is one of four bytes for each point of a tile that is read ahead (H200, 8192 rows of 10,000 by 512
    programs, with three numbers of each row: 1563 us with 3 stages, 255 with 1).
    """
    loads = [e.index[0].axes() for e in facts.nest.body if isinstance(e, Load)]
    return facts.fast in inner and any(axes & inner and facts.fast not in axes for axes in loads)


def columns_in_pieces(
    facts: NestFacts, outer: tuple[Block, ...], inner: frozenset[str], run: tuple[str, ...]
) -> GpuSchedule:
    """The schedule of reductions over ``inner`` beside such a run: short tiles of many threads.

    H100, float32, tiles of 64 x 64 read ahead by four warps, the same by eight that read nothing ahead, and half as
    high: sums over 2040 rows of 13,035 columns with a mask 340 us, 80 and 94; over 194,865 of 63 441 us, 142 and 132;
    two over 119,560 of 63, beside a result, 239 us in tiles of eight columns held whole, 212 and 121. Bfloat16, 33
    columns: 42 us by four warps that read ahead, nine by four that do not.
    """
    narrow = facts.bytes() > 2
    high, each = (32, 8) if narrow else (64, 32)
    across = side(facts.size(run)) if narrow else min(power(facts.size(run)), COLUMNS)
    tall = Block(facts.ordered(inner), min(power(facts.size(inner)), high * COLUMNS // across), "loop")
    blocks = (*outer, tall, Block(run, across, "grid"))
    return GpuSchedule("columns", blocks, warps=warps_for(tall.size * across, each), approximate=facts.approximate)
