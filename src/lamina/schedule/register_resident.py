"""Register-resident rows: rows that several phases read stay in registers as they were loaded, 16 bits an element.

Conversions to float32 would take twice the registers. A program that holds 100 KB leaves nothing for another one, so
that a multiprocessor either reads or writes. Eight small programs of a cluster hold a part each, and others run beside
them (H200, group norm of 1024 rows of 40960: 67.5 us by loops that read twice, 61.5 so).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lamina.base.dtypes import DTYPES
from lamina.base.target import CLUSTERS, Target
from lamina.ir.index import prod
from lamina.ir.loops import Load, Nest
from lamina.ir.plan import Block, GpuSchedule
from lamina.schedule.cluster import MOST_PROGRAMS, joined, reread
from lamina.schedule.gpu_cost import phases

__all__ = ["register_resident_loops"]

_ACCESS = 8
"""Points of a tile for each thread, one wide access of 16-bit elements."""
_WARPS = 4
"""Warps of a program: few, so that several programs share a multiprocessor."""
_MOST = 96
"""Most bytes of a row in the registers (512 bytes) of a thread of a cluster; more leaves no room for other programs."""
_SHORTEST = 16384
"""Points of a row below which a program holds it as one tile."""


def register_resident_loops(
    nest: Nest, dtypes: Mapping[str, str], target: Target, found: GpuSchedule, extents: Mapping[str, int]
) -> list[GpuSchedule]:
    """``found``, which goes over rows in tiles more than once, with the rows kept in the registers of clusters.

    Empty where rows are too wide, too short, begin at any element or are read once.
    """
    loops = [b for b in found.blocks if b.role == "loop"]
    apart = [b for b in found.blocks if b.role != "loop"]
    if found.kind != "loops" or found.peel or len(loops) != 1 or any(b.role != "grid" or b.size > 1 for b in apart):
        return []
    (loop,) = loops
    over = set(loop.axes)
    width = prod(a.extent for a in nest.axes if a.name in over)
    if not target.has(CLUSTERS) or not joined(nest, over) or not width.is_int or width.const < _SHORTEST:
        return []
    large = [e for e in nest.body if isinstance(e, Load) and e.index[0].axes() > over]
    wide = any(DTYPES[dtypes[e.buffer]].size > 2 for e in large)
    if wide or phases(nest, over) < 2:
        return []
    if sum(reread(nest, dtypes, over)) * width.const > _MOST * 32 * _WARPS * MOST_PROGRAMS:
        return []
    blocks = tuple(Block(b.axes, _ACCESS * 32 * _WARPS, "loop") if b is loop else b for b in found.blocks)
    made = GpuSchedule(
        "loops",
        blocks,
        warps=_WARPS,
        online=True,
        approximate=found.approximate,
        cluster=MOST_PROGRAMS,
        register_resident=True,
    )
    return [replace(made, approximate_sums=target.approximate)]
