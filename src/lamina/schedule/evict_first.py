"""Evict-first loads for reductions that read each element once and more bytes than L2 holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lamina.base.dtypes import DTYPES
from lamina.base.target import Target
from lamina.ir.index import Loaded
from lamina.ir.loops import Load, Nest, Reduce, Scan, Store
from lamina.ir.plan import GpuSchedule

__all__ = ["evict_first"]

_POINTS = 16
"""Points of a thread of a row that is only reduced: two wide reads, so that more threads wait for memory."""
_WIDEST = 8192
"""Points of a row from which deviations are summed by fewer threads (H200, 16384 of them: 8 warps 73 us, 32 warps 91).
"""


def evict_first(
    nest: Nest, dtypes: Mapping[str, str], target: Target, found: GpuSchedule, extents: Mapping[str, int]
) -> GpuSchedule:
    """``found`` with its reads marked as the first to leave the cache, where nothing of them is wanted again.

    Such are reductions alone, over operands that together do not fit the second-level cache and are read once. Rows get
    twice the threads as well (H100, sums of rows of 8192: 98 us, with either 97, with both 94.5).
    """
    reduced = {a for e in nest.body if isinstance(e, Reduce) for a in e.axes}
    if found.kind not in ("rows", "loops", "columns") or not reduced or any(isinstance(e, Scan) for e in nest.body):
        return found
    everything = frozenset(a.name for a in nest.axes)
    read, operands = 0, set[str]()
    for eqn in nest.body:
        if isinstance(eqn, Store) and eqn.index[0].axes() & reduced:
            return found
        if isinstance(eqn, Load) and eqn.index[0].axes() == everything:
            if eqn.buffer in operands or any(isinstance(a, Loaded) for a in eqn.index[0].atoms()):
                return found
            operands.add(eqn.buffer)
            points = DTYPES[dtypes[eqn.buffer]].size
            for axis in everything:
                points *= extents[axis]
            read += points
    if read <= target.l2_bytes or (found.kind != "rows" and _again(nest)):
        return found
    if found.kind == "rows":
        points = 1
        for block in found.blocks:
            points *= block.size
        twice = any(isinstance(e, Reduce) and e.op == "welford" for e in nest.body) and points > _WIDEST
        wanted = max(found.warps, 0 if twice else min(32, points // (32 * _POINTS)))
        found = replace(found, warps=wanted)
    return replace(found, evict_first=True)


def _again(nest: Nest) -> bool:
    """Whether a tile is read once more: for a reduction of values that stand on another reduction."""
    done: set[str] = set()
    for eqn in nest.body:
        if isinstance(eqn, Reduce):
            if eqn.value in done:
                return True
            done |= set(eqn.outs)
        elif isinstance(eqn, Store):
            continue
        elif done & set(getattr(eqn, "ins", ())):
            done.add(getattr(eqn, "out", ""))
    return False
