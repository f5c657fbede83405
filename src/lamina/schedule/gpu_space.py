"""Ways to iterate a nest on a GPU beside the one that is chosen when nothing is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from lamina.base.target import Target
from lamina.ir.loops import Nest
from lamina.ir.plan import Block, GpuSchedule
from lamina.schedule.cluster import shared_rows
from lamina.schedule.gpu import DIVIDED_POINTS, choose, fitter
from lamina.schedule.gpu_cost import phases
from lamina.schedule.gpu_facts import HELD, MUCH, NestFacts, guess, power
from lamina.schedule.gpu_neighbours import length_of, scaled, with_sizes, with_warps
from lamina.schedule.gpu_ranking import RankingTime, points_of_a_thread
from lamina.schedule.gpu_refine import HOPELESS
from lamina.schedule.product_tiles import product_schedules
from lamina.schedule.register_resident import register_resident_loops

__all__ = ["MOST", "Ranked", "candidates"]

MOST = 8
"""Schedules of one kernel that are timed at most, the model's own included."""
_SHORTEST_LOOP = 2048
"""Points of a row's tile, and of the shortest row that is gone over in tiles."""
_LONGEST_ROW = 65536
"""Points of a row that may be held in registers, at 32 warps and two 16-bit values a register."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A schedule, and the microseconds that are expected of it: to be compared with others of its nest, and no more.

    Products have a model of their own that ranks them only, what programs of a cluster wait for is in none, and little
    is known of how a tile without gaps is read.
    """

    schedule: GpuSchedule
    expected: float | None


def candidates(
    nest: Nest,
    dtypes: Mapping[str, str],
    target: Target,
    extents: Mapping[str, int] | None = None,
    most: int = MOST,
    alone: bool = False,
) -> list[Ranked]:
    """Up to ``most`` schedules, the one used when nothing is measured first, the others by what the model expects.

    ``dtypes`` gives each flat buffer's element type, ``extents`` each axis its length where it is known better than
    the nest knows it. ``alone``: the nest has a kernel of its own, whose programs may form clusters.
    """
    products = product_schedules(nest, dtypes, target)
    if products:
        return [Ranked(schedule, None) for schedule in products[:most]]
    lengths = {a.name: guess(a.extent) for a in nest.axes} | dict(extents or {})
    first, fitting = choose(nest, dtypes, target, alone), fitter(nest, dtypes, target)
    expected = RankingTime(NestFacts(nest, dtypes, target), lengths)
    own = choose(nest, dtypes, target) if first.cluster else first
    even = _without_gaps(own, nest, target, lengths, expected.instructions)
    others = [*_otherwise(first, nest, target, lengths), *_held_columns(first, nest, lengths), *_apart(first, lengths)]
    others += [] if even is None else _apart(even, lengths)
    near = (fitting(s) for one in (*_near(first, lengths), *others) for s in (one, *_near(one, lengths)))
    times = {s: expected(s) for s in dict.fromkeys([first, *near])}
    most_time = times[first] / HOPELESS
    rest = _varied(sorted((s for s in times if s != first and times[s] <= most_time), key=times.__getitem__))
    rules = choose(nest, dtypes, target, by_rules=True)
    if rules not in (first, own):
        rest = [*rest[:1], rules, *(s for s in rest[1:] if s != rules)] if rules not in rest[:1] else rest
    held = register_resident_loops(nest, dtypes, target, own, lengths) if alone else []
    if first.cluster:
        rest = [own, *(s for s in rest if s != own)]
    shared = shared_rows(nest, dtypes, target, first, lengths) if alone and not first.cluster else None
    if shared is not None:
        # The model knows nothing of what its programs wait for.
        others = [replace(shared, warps=n) for n in (shared.warps * 2, shared.warps // 2) if 1 <= n <= 32]
        rest = [shared, *rest[:1], *others, *rest[1:]]
    if even is not None and even != own:
        rest = [even, *(s for s in rest if s != even)]
    unknown = {shared, even, *held} - {first}
    found = (first, *[*held, *rest][: most - 1])
    return [Ranked(s, None if s.cluster or s in unknown else expected(s)) for s in found]


def _varied(ranked: list[GpuSchedule]) -> list[GpuSchedule]:
    """The first of them, the first one of other blocks, then the first with each number of points a thread, and the
    others: neighbours in a ranking are much alike, and what is wrong about one is wrong about all of them.
    """
    apart = ranked[:1] + [s for s in ranked[1:] if _structure(s) != _structure(ranked[0])][:1]
    known = {points_of_a_thread(s) for s in apart}
    for schedule in ranked:
        if points_of_a_thread(schedule) not in known:
            known.add(points_of_a_thread(schedule))
            apart.append(schedule)
    return [*apart, *(s for s in ranked if s not in apart)]


def _structure(schedule: GpuSchedule) -> list[tuple[tuple[str, ...], str]]:
    return [(b.axes, b.role) for b in schedule.blocks]


def _otherwise(schedule: GpuSchedule, nest: Nest, target: Target, lengths: Mapping[str, int]) -> Iterator[GpuSchedule]:
    """Rows held in registers instead of gone over in tiles, and the other way round."""
    role = {"rows": "whole", "loops": "loop"}.get(schedule.kind) if not schedule.cluster else None
    places = [k for k, b in enumerate(schedule.blocks) if b.role == role]
    if len(places) != 1:
        return
    (k,) = places
    block = schedule.blocks[k]
    points = length_of(block, lengths)
    whole = 1 << max(points - 1, 1).bit_length()

    def made(kind: str, size: int, role: str, warps: int, stages: int) -> GpuSchedule:
        blocks = tuple(replace(block, size=size, role=role) if at == k else b for at, b in enumerate(schedule.blocks))
        looped = kind == "loops"
        exact = not (looped and target.approximate)
        return GpuSchedule(
            kind,
            blocks,
            warps=warps,
            stages=stages,
            online=looped,
            approximate=schedule.approximate,
            approximate_sums=not exact,
            evict_first=schedule.evict_first,
        )

    if role == "whole" and points >= _SHORTEST_LOOP:
        yield made("loops", _SHORTEST_LOOP, "loop", 4, 3)
    known = all(a.extent.is_int for a in nest.axes if a.name in block.axes)
    if role == "loop" and known and whole <= _LONGEST_ROW:
        yield made("rows", whole, "whole", max(4, min(32, whole // 1024)), 1)


def _held_columns(schedule: GpuSchedule, nest: Nest, lengths: Mapping[str, int]) -> Iterator[GpuSchedule]:
    """Columns held in registers instead of gone over in tiles once for each phase: what a loop computes again takes
    longer than other programs wait for registers, where much is computed.
    """
    looped = [k for k, b in enumerate(schedule.blocks) if b.role == "loop"]
    if schedule.kind != "columns" or schedule.cluster or len(looped) != 1:
        return
    (k,), shared = looped, [j for j, b in enumerate(schedule.blocks) if b.role == "grid"]
    loop = schedule.blocks[k]
    tall = power(max(length_of(loop, lengths), 2))
    known = all(a.extent.is_int for a in nest.axes if a.name in loop.axes)
    if not known or len(shared) + 1 < len(schedule.blocks) or phases(nest, set(loop.axes)) < 2:
        return
    last = shared[-1]
    for across in (8, 16, 32, 64):
        points = tall * across
        if points <= HELD and across < 2 * length_of(schedule.blocks[last], lengths):
            sizes = {k: tall, last: across}
            blocks = tuple(
                replace(b, size=sizes.get(j, 1), role="whole" if j == k else b.role)
                for j, b in enumerate(schedule.blocks)
            )
            yield replace(schedule, blocks=blocks, warps=max(1, min(32, points // 512)), stages=1)


def _apart(schedule: GpuSchedule, lengths: Mapping[str, int]) -> Iterator[GpuSchedule]:
    """Joined axes that programs share as two blocks: what varies over some of them only is computed and read for those
    alone. (H200, products of 465,000 rows of 14 numbers, cosines of differences, with 16 columns: rows and columns
    joined 435 us, 64 and 4 of them 112.)
    """
    if schedule.kind not in ("pointwise", "columns") or schedule.cluster:
        return
    for k, block in enumerate(schedule.blocks):
        if block.role != "grid" or block.size < 32:
            continue
        for at in range(1, len(block.axes)):
            slow, fast = block.axes[:at], block.axes[at:]
            width = prod(lengths[a] for a in fast)
            across = power(width)
            for size in dict.fromkeys((min(across, block.size), min(across, block.size // 4), min(across, 32))):
                high = min(block.size // size, power(prod(lengths[a] for a in slow)))
                if high > 1:
                    pair = Block(slow, high, "grid"), Block(fast, size, "grid")
                    yield replace(schedule, blocks=(*schedule.blocks[:k], *pair, *schedule.blocks[k + 1 :]))


def _without_gaps(
    schedule: GpuSchedule, nest: Nest, target: Target, lengths: Mapping[str, int], instructions: float
) -> GpuSchedule | None:
    """One block of all axes that programs share, where tiles of several compute an eighth more points than exist, or
    many ``instructions`` at each; ``None`` elsewhere. Its accesses may be narrower: the model knows little of that.

    (H200, a bicubic image of 6 x 256 x 48 x 22 in bfloat16: 126 us in tiles, 30 without; a scan beside 25 x 25 columns,
    512 x 24 of them: 486 us in tiles of 8 x 16 columns, 178 of 128 in eight rows at a time, 135 in two.)
    """
    shared = [b for b in schedule.blocks if b.role == "grid" and (schedule.kind == "pointwise" or b.size > 1)]
    if schedule.kind not in ("pointwise", "columns", "scan") or schedule.cluster or len(shared) < 2:
        return None
    computed = prod(-(-length_of(b, lengths) // b.size) * b.size for b in shared)
    there = prod(length_of(b, lengths) for b in shared)
    if 8 * computed < 9 * there and instructions < MUCH:
        return None
    points = min(DIVIDED_POINTS, prod(b.size for b in shared))
    axes = tuple(a.name for a in nest.axes if any(a.name in b.axes for b in shared))
    even = Block(axes, points, "grid")
    blocks = tuple(even if b is shared[-1] else b for b in schedule.blocks if b not in shared[:-1])
    if schedule.kind == "scan" and there >= points * target.processors:  # threads go through columns of their own
        blocks = tuple(replace(b, size=min(b.size, 2)) if b.role == "loop" else b for b in blocks)
    return replace(schedule, blocks=blocks)


def _near(schedule: GpuSchedule, lengths: Mapping[str, int]) -> Iterator[GpuSchedule]:
    """Twice and half the warps, each block's points, both of them together, another number of stages."""
    yield from scaled(schedule, lengths, 2)
    yield from scaled(schedule, lengths, 4)
    yield from with_warps(schedule, 2)
    yield from with_sizes(schedule, lengths, 2)
    if any(b.role == "loop" for b in schedule.blocks):
        for stages in {1, 2, 3, 4} - {schedule.stages}:
            yield replace(schedule, stages=stages)
