"""GPU schedules beside a given one: the same nest and the same kinds of blocks, in other sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from lamina.ir.plan import Block, GpuSchedule

__all__ = ["around", "length_of", "scaled", "searchable", "with_sizes", "with_warps"]

_LARGEST = 16384
"""Points of a tile, of a warp a quarter."""


def searchable(schedule: GpuSchedule) -> bool:
    """Whether schedules around this one are the same program in other tiles.

    A product's tiles, clusters and rows that stay in registers depend on more than their sizes.
    """
    return schedule.kind != "product" and not schedule.cluster and not schedule.register_resident


def around(schedule: GpuSchedule, lengths: Mapping[str, int], factor: int) -> Iterator[GpuSchedule]:
    """Schedules with ``factor`` times, or one part in ``factor`` of, the warps or a block's points, or of the points of
    one block and the other way round of another's, and for loops with other stages. What a program holds whole is as
    long as it was. ``lengths`` gives each axis its length.
    """
    for found in (
        *with_warps(schedule, factor),
        *with_sizes(schedule, lengths, factor),
        *_with_shapes(schedule, lengths, factor),
        *_with_stages(schedule),
    ):
        points = prod(b.size for b in found.blocks)
        if points <= max(_LARGEST, prod(b.size for b in schedule.blocks)) and points <= _LARGEST // 4 * found.warps:
            yield found


def with_warps(schedule: GpuSchedule, factor: int) -> Iterator[GpuSchedule]:
    """``factor`` times the warps, and one part in ``factor``."""
    for warps in (schedule.warps * factor, schedule.warps // factor):
        if 1 <= warps <= 32:
            yield replace(schedule, warps=warps)


def scaled(schedule: GpuSchedule, lengths: Mapping[str, int], factor: int) -> Iterator[GpuSchedule]:
    """``factor`` times the warps and the points of one block, or of each of two the root, and one part in ``factor``:
    a thread's points stay, and programs are fewer or more.
    """
    places = _changeable(schedule)
    shares = [{k: factor} for k in places]
    root = int(factor**0.5)
    shares += [{k: root, j: root} for k in places for j in places if k < j] if root * root == factor else []
    for share in shares:
        for up in (True, False):
            warps = schedule.warps * factor if up else schedule.warps // factor
            sizes = {k: schedule.blocks[k].size * f if up else schedule.blocks[k].size // f for k, f in share.items()}
            fits = all(1 <= n < 2 * length_of(schedule.blocks[k], lengths) for k, n in sizes.items())
            if fits and 1 <= warps <= 32 and prod(b.size for b in schedule.blocks) * factor**up <= _LARGEST:
                yield replace(_resized(schedule, sizes), warps=warps)


def _with_stages(schedule: GpuSchedule) -> Iterator[GpuSchedule]:
    if any(b.role == "loop" for b in schedule.blocks):
        for stages in (1, 3) if schedule.stages == 2 else (4 - schedule.stages,) if schedule.stages in (1, 3) else (3,):
            yield replace(schedule, stages=stages)


def _changeable(schedule: GpuSchedule) -> list[int]:
    """Places of blocks that may have other sizes. Loops over rows take one row each: partial results of several spill,
    and unaligned ends are those of one.
    """
    looped = schedule.kind == "loops"
    return [k for k, b in enumerate(schedule.blocks) if b.role == "loop" or (b.role != "whole" and not looped)]


def with_sizes(schedule: GpuSchedule, lengths: Mapping[str, int], factor: int) -> Iterator[GpuSchedule]:
    """``factor`` times the points of each block, and one part in ``factor``."""
    for k in _changeable(schedule):
        block = schedule.blocks[k]
        others = prod(b.size for b in schedule.blocks) // block.size
        for size in (block.size * factor, block.size // factor):
            if 1 <= size < 2 * length_of(block, lengths) and size * others <= _LARGEST:
                yield _resized(schedule, {k: size})


def _with_shapes(schedule: GpuSchedule, lengths: Mapping[str, int], factor: int) -> Iterator[GpuSchedule]:
    """Tiles of as many points and another shape."""
    places = _changeable(schedule)
    for k in places:
        for j in places:
            larger, smaller = schedule.blocks[k].size * factor, schedule.blocks[j].size // factor
            if k != j and smaller >= 1 and larger < 2 * length_of(schedule.blocks[k], lengths):
                yield _resized(schedule, {k: larger, j: smaller})


def _resized(schedule: GpuSchedule, sizes: Mapping[int, int]) -> GpuSchedule:
    blocks = tuple(replace(b, size=sizes.get(k, b.size)) for k, b in enumerate(schedule.blocks))
    return replace(schedule, blocks=blocks)


def length_of(block: Block, lengths: Mapping[str, int]) -> int:
    """Points along all of a block's axes."""
    return prod(lengths[a] for a in block.axes)
