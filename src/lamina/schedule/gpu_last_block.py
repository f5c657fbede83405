"""Last-block reductions: the last program to finish a partial of a result joins all of them, in the same launch.

A second launch costs 4 to 6 us: the gap before it, and the time in which the first one ends and it begins. The last
program instead reads what the others left, always all of it and in the same order, so that results do not depend on
which one is the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.base.target import Target
from lamina.ir.access import reads, writes
from lamina.ir.index import prod
from lamina.ir.last_block import Pairs, paired_axes, partial_axes
from lamina.ir.loops import Buffer, Nest
from lamina.ir.plan import Block, GpuSchedule
from lamina.schedule.flatten import flatten
from lamina.schedule.gpu import choose
from lamina.schedule.horizontal import GroupedStep
from lamina.schedule.memo import Memo

__all__ = ["join_in_last_block", "last_block_schedule", "with_last_block"]

_JOINED = 1 << 16
"""Points that one program may join: it reads them from the second-level cache while hardly anyone else works."""
_TILE = 8192
"""Points that it joins at once."""
_EACH = 32
"""Of them for each thread."""


def join_in_last_block(
    groups: Sequence[GroupedStep], buffers: Mapping[str, Buffer], target: Target, memo: Memo
) -> list[GroupedStep]:
    """The groups with nests that join what the nest before them left as one launch with it."""
    result: list[GroupedStep] = []
    for group in groups:
        before = result[-1] if result else None
        if isinstance(group, tuple) and len(group) == 1 and isinstance(before, tuple) and len(before) == 1:
            (first,), (second,) = before, group
            if writes(first) & reads(second) and _joins(first, second, buffers, target, memo):
                result[-1] = (first, second)
                continue
        result.append(group)
    return result


def _joins(first: Nest, second: Nest, buffers: Mapping[str, Buffer], target: Target, memo: Memo) -> bool:
    def found() -> bool:
        flat = flatten((first, second), buffers)
        if flat.sizes or paired_axes(*flat.nests) is None:
            return False
        dtypes = {f"b{k}": dtype for k, dtype in enumerate(flat.dtypes)}
        return with_last_block(flat.nests, choose(flat.nests[0], dtypes, target)) is not None

    return memo.of("joins", (first, second), found)


def _parts(second: Nest, over: frozenset[str]) -> int:
    return prod(a.extent for a in second.axes if a.name in over).const


def with_last_block(nests: Sequence[Nest], first: GpuSchedule) -> tuple[GpuSchedule, ...] | None:
    """The schedules of a kernel of two such nests, of which the first has this one; None where it does not fit."""
    second = last_block_schedule(nests[0], nests[1], first)
    return None if second is None else (first, second)


def last_block_schedule(first: Nest, second: Nest, given: GpuSchedule) -> GpuSchedule | None:
    """How the last programs run the second nest, where programs of the first share its work as ``given`` says.

    A program's results are then those of one program of the second nest. None where they are not, and for products,
    whose tiles the tensor cores lay out.
    """
    pairs, over = paired_axes(first, second), partial_axes(second)
    if pairs is None or not over or given.kind == "product":
        return None
    sizes = _sizes(first, pairs, over, given)
    if sizes is None:
        return None
    extents = {a.name: a.extent.const for a in second.axes}
    across = 1
    for name in sizes:
        across *= sizes[name]
    parts = _parts(second, over)
    if parts * across > _JOINED:
        return None
    whole = 1 << max(parts - 1, 1).bit_length()
    most = max(min(_TILE, _EACH * 32 * given.warps) // across, 2)
    members = tuple(a.name for a in second.axes if a.name in over)
    joined = Block(members, whole, "whole") if whole <= most else Block(members, most, "loop")
    blocks = [Block((name,), sizes[name], "grid") for name in extents if name not in over]
    wide = [b for b in blocks if b.size > 1]
    order = (*(b for b in blocks if b.size == 1), joined, *wide)
    kind = "columns" if wide else "rows"
    return GpuSchedule(
        kind, order, warps=given.warps, stages=given.stages, approximate=given.approximate, last_block=True
    )


def _sizes(first: Nest, pairs: Pairs, over: frozenset[str], given: GpuSchedule) -> dict[str, int] | None:
    """For each axis of the results how many points of it programs have; None where that is no tile of the results."""
    of = {name: axis for axis, names in pairs.items() for name in names}
    extents = {a.name: a.extent.const for a in first.axes if a.extent.is_int}
    sizes = {axis: 1 for axis in pairs if axis not in over}
    for block in given.blocks:
        mine = [a for a in block.axes if a in of]
        if not mine:
            continue
        if block.role != "grid" or len(mine) != len(block.axes):
            return None
        if block.size == 1:
            continue
        owners = {of[a] for a in mine}
        if owners <= over:
            continue
        (owner,) = owners if len(owners) == 1 else (None,)
        if owner is None or sizes[owner] != 1 or pairs[owner][-len(mine) :] != block.axes:
            return None
        length = 1
        for name in block.axes:
            length *= extents[name]
        if len(mine) < len(pairs[owner]) and length % block.size:
            return None
        sizes[owner] = block.size
    return sizes
