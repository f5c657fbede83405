"""Peeled tails of elementwise kernels whose length is no multiple of sixteen, so that all other accesses are wide.

Triton makes an access wide only where all of a thread's neighbouring points are inside or outside of its mask. At a
length that is no multiple of sixteen it cannot know that of any tile, and each element is moved by itself (H100, two
tensors of 16,770,250 bf16 compared: 65 us; 35 us are the bytes). So the tiles end at the last multiple of sixteen, and
one program goes over what is left, fifteen elements at most, in a small tile.
"""

from __future__ import annotations

from dataclasses import replace

from lamina.ir.index import Size, prod
from lamina.ir.loops import Check, Load, Nest, Store
from lamina.ir.plan import GpuSchedule

__all__ = ["GROUP", "has_tail", "lengths_of_groups", "tail_schedule"]

GROUP = 16
"""Points of a group; 16 bytes of the smallest elements."""
_LEAST = 2048
"""Known lengths below which nothing is gained."""


def has_tail(nest: Nest, schedule: GpuSchedule) -> bool:
    """Whether the tiles of the nest are written as whole groups and a rest.

    Not where something is done once a tile and twice would be once too often: an addition to memory.
    """
    if schedule.kind != "pointwise" or len(schedule.blocks) != 1 or schedule.blocks[0].size % GROUP:
        return False
    extent = prod(a.extent for a in nest.axes)
    if extent.is_int and (extent.const % GROUP == 0 or extent.const < _LEAST):
        return False
    accesses = [e for e in nest.body if isinstance(e, Load | Store)]
    if any(isinstance(e, Check) for e in nest.body) or any(isinstance(e, Store) and e.mode != "set" for e in accesses):
        return False
    (last,) = (a for a in nest.axes if a.name == schedule.blocks[0].axes[-1])
    return any(e.index[0].coefficient(last) == 1 for e in accesses)


def lengths_of_groups(nest: Nest) -> frozenset[str] | None:
    """The sizes that give the nest whole groups alone where all of them are multiples of sixteen; else ``None``."""
    extent = prod(a.extent for a in nest.axes)
    sizes = [atom for mono, _ in extent.terms for atom in mono]
    if extent.const % GROUP or not all(isinstance(atom, Size) for atom in sizes):
        return None
    return frozenset(atom.name for atom in sizes if isinstance(atom, Size))


def tail_schedule(schedule: GpuSchedule) -> GpuSchedule:
    """How the rest is iterated: one group."""
    (block,) = schedule.blocks
    return replace(schedule, blocks=(replace(block, size=GROUP),))
