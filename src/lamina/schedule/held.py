"""Rows that are gone over more than once, whose elements stay in registers as they were loaded, 16 bits wide.

Conversions to float32 would take twice the registers. A program that holds 100 KB leaves nothing for another one, so
that a multiprocessor either reads or writes; two programs of a cluster with half of the row each leave room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lamina.base.dtypes import DTYPES
from lamina.ir.index import prod
from lamina.ir.loops import Check, Load, Nest, Random, Reduce, Scan, Store
from lamina.ir.plan import Block, GpuSchedule
from lamina.schedule.gpu_cost import CostModel
from lamina.schedule.gpu_target import GpuTarget
from lamina.schedule.team import joined, reread

__all__ = ["held_loops"]

_CLUSTERS = 90
_ACCESS = 8
"""Points of a tile for each thread, one wide access of 16-bit elements."""
_MOST = 224
"""Bytes of a row for each of 512 threads, of 512 bytes of registers."""
_OF_TEAMS = 176
"""The same where other programs are to run beside it."""
_SHORTEST = 16384
"""Points of a row below which a program holds it as one tile."""


def held_loops(
    nest: Nest,
    dtypes: Mapping[str, str],
    target: GpuTarget,
    found: GpuSchedule,
    extents: Mapping[str, int],
    alone: bool,
) -> list[GpuSchedule]:
    """``found``, which goes over rows in tiles more than once, with the rows held: by a program or, where the kernel is
    the nest's alone, by teams. None where rows are too wide, too short, or read once.
    """
    loops = [b for b in found.blocks if b.role == "loop"]
    if (
        found.kind != "loops"
        or len(loops) != 1
        or any(b.role != "grid" or b.size > 1 for b in found.blocks if b != loops[0])
    ):
        return []
    (loop,) = loops
    width = prod(a.extent for a in nest.axes if a.name in loop.axes)
    odd = any(isinstance(e, Scan | Check | Random) or (isinstance(e, Store) and e.mode != "set") for e in nest.body)
    if odd or not width.is_int or width.const < _SHORTEST:
        return []
    sizes = reread(nest, dtypes, set(loop.axes))
    wide = any(
        DTYPES[dtypes[e.buffer]].size > 2
        for e in nest.body
        if isinstance(e, Load) and e.index[0].axes() > set(loop.axes)
    )
    if CostModel(nest, dtypes, target, extents).phases(set(loop.axes)) < 2 or wide:
        return []
    row = sum(sizes) * width.const
    made: list[GpuSchedule] = []
    if alone and not found.peel and target.capability >= _CLUSTERS and joined(nest, set(loop.axes)):
        for team, warps in ((2, 8), (8, 16)):
            if row <= _OF_TEAMS * 32 * warps * team:
                made.append(_held(found, loop, warps, team))
                break
    if row <= _MOST * 512:
        made.append(_held(found, loop, 16, 0))
    exact = [e for e in nest.body if isinstance(e, Reduce) and e.op.startswith("arg")]
    return [] if exact else [replace(s, approximate_sums=target.approximate) for s in made]


def _held(found: GpuSchedule, loop: Block, warps: int, team: int) -> GpuSchedule:
    blocks = tuple(Block(b.axes, _ACCESS * 32 * warps, "loop") if b is loop else b for b in found.blocks)
    return GpuSchedule("loops", blocks, warps, 1, True, found.peel, found.approximate, team=team, held=True)
