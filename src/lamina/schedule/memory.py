"""Memory planning: where every buffer lives, and which temporaries share the bytes of one workspace.

Temporaries go to the region's arena. Those of known size are placed in step order, best fit, which hands the most
recently freed bytes out again while the caches still hold them; those of symbolic size take over slots of the very
same size, since nothing else is provable. Memory that outlives the call ("output") and memory that a library call
makes ("library") stay outside.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence

from lamina.ir.access import reads, views, writes
from lamina.ir.index import Expr, as_expr, ceildiv
from lamina.ir.library import OUT_VARIANTS, may_alias
from lamina.ir.loops import Buffer, BufferView, LibraryCall, SizeInput, storage_bytes
from lamina.ir.plan import Place, PlanStep

__all__ = ["ALIGNMENT", "live_ranges", "plan_memory"]

ALIGNMENT = 64
"""Bytes: one cache line and the widest SIMD register."""


_WASTE = 1.1
"""Memory over what is alive at once, and over what another plan needs, that is worth a second try."""

_SECOND_TRY = 400
"""Most buffers for a second try, which takes quadratic time."""


def plan_memory(
    steps: Sequence[PlanStep],
    buffers: Sequence[Buffer],
    inputs: Sequence[str | SizeInput | None],
    outputs: Sequence[BufferView | Expr | None],
    alone: Callable[[Buffer], bool] | None = None,
) -> tuple[tuple[Place, ...], Expr]:
    """A place for every buffer that is used, in the order of ``buffers``, and the bytes of the arena.

    Temporaries that ``alone`` is true of get fresh memory of their own, like outputs, instead of a part of the arena.
    Linear in steps times arguments, apart from the search for a free block.
    """
    given = {name for name in inputs if isinstance(name, str)}
    returned = {out.buffer for out in outputs if isinstance(out, BufferView)}
    library = {out for s in steps if isinstance(s, LibraryCall) and s.op not in OUT_VARIANTS for out in s.outs if out}
    spans, kept = live_ranges(steps, returned)
    temporaries: list[Buffer] = []
    where: dict[str, str] = {}
    for buffer in buffers:
        name = buffer.name
        if name in given:
            where[name] = "input"
        elif name in library:
            where[name] = "library"
        elif name in kept or (name in spans and alone is not None and alone(buffer)):
            where[name] = "output"
        elif name in spans:
            where[name] = "arena"
            temporaries.append(buffer)
    offsets, total = _place(temporaries, spans)
    return tuple(Place(b.name, where[b.name], offsets.get(b.name)) for b in buffers if b.name in where), total


def live_ranges(steps: Sequence[PlanStep], returned: set[str]) -> tuple[dict[str, tuple[int, int]], set[str]]:
    """First and last step that touches each buffer, and the buffers whose memory outlives the call.

    Where a library call's result may be a view of an argument, the argument lives as long as the result.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for at, step in enumerate(steps):
        for name in reads(step) | writes(step):
            first.setdefault(name, at)
            last[name] = at
    kept = set(returned)
    aliasing: dict[str, bool] = {}
    for step in reversed(steps):
        if not isinstance(step, LibraryCall):
            continue
        if step.op not in aliasing:
            aliasing[step.op] = may_alias(step.op)
        if not aliasing[step.op]:
            continue
        outs = [out for out in step.outs if out is not None]
        for view in views(step):
            last[view.buffer] = max(last[view.buffer], *(last[out] for out in outs), 0)
            if any(out in kept for out in outs):
                kept.add(view.buffer)
    return {name: (first[name], last[name]) for name in first}, kept


def _place(temporaries: Sequence[Buffer], spans: Mapping[str, tuple[int, int]]) -> tuple[dict[str, Expr], Expr]:
    static: list[tuple[int, int, str, int]] = []
    symbolic: list[tuple[int, int, str, Expr]] = []
    for buffer in temporaries:
        nbytes = storage_bytes(buffer)
        start, end = spans[buffer.name]
        if nbytes.is_int:
            static.append((start, end, buffer.name, -(-nbytes.const // ALIGNMENT) * ALIGNMENT))
        else:
            symbolic.append((start, end, buffer.name, ceildiv(nbytes, ALIGNMENT) * ALIGNMENT))
    fixed, fixed_total = _best_fit(static)
    if len(static) <= _SECOND_TRY and fixed_total > _WASTE * _most_alive(static):
        other, other_total = _largest_first(static)
        if other_total * _WASTE < fixed_total:
            fixed, fixed_total = other, other_total
    offsets = {name: as_expr(offset) for name, offset in fixed.items()}
    moving, total = _equal_slots(symbolic, as_expr(fixed_total))
    return offsets | moving, total


Item = tuple[int, int, str, int]


def _most_alive(items: list[Item]) -> int:
    """Most bytes alive at one step: no plan needs less."""
    changes: dict[int, int] = {}
    for start, end, _, size in items:
        changes[start] = changes.get(start, 0) + size
        changes[end + 1] = changes.get(end + 1, 0) - size
    alive = most = 0
    for at in sorted(changes):
        alive += changes[at]
        most = max(most, alive)
    return most


def _largest_first(items: list[Item]) -> tuple[dict[str, int], int]:
    """Offsets found in order of size: each in the tightest gap among what lives at the same time.

    Wastes less than ``_best_fit`` where sizes differ much, and cares nothing for warm caches.
    """
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first step, last step; by offset
    offsets: dict[str, int] = {}
    top = 0
    for start, end, name, size in sorted(items, key=lambda i: (-i[3], i[0])):
        best, room, reach = -1, -1, 0
        for offset, limit, first, last in placed:
            if first > end or last < start:
                continue
            gap = offset - reach
            if gap >= size and (best < 0 or gap < room):
                best, room = reach, gap
            reach = max(reach, limit)
        offsets[name] = at = best if best >= 0 else reach
        if size:
            insort(placed, (at, at + size, start, end))
        top = max(top, at + size)
    return offsets, top


def _best_fit(items: list[Item]) -> tuple[dict[str, int], int]:
    """Offsets of ``(start, end, name, bytes)``: each takes the smallest free block that holds it."""
    heap = _FreeList()
    offsets: dict[str, int] = {}
    ending: list[tuple[int, int, int]] = []
    # Larger first among those that start together: small ones then fill what is left.
    for start, end, name, size in sorted(items, key=lambda i: (i[0], -i[3])):
        while ending and ending[0][0] < start:
            _, offset, length = ending.pop(0)
            heap.free(offset, length)
        offsets[name] = offset = heap.take(size)
        if size:
            insort(ending, (end, offset, size))
    return offsets, heap.top


class _FreeList:
    """Free blocks by offset, merged with their neighbours; ``top`` is the highest byte ever used."""

    def __init__(self) -> None:
        self.top = 0
        self._starts: list[int] = []
        self._sizes: list[int] = []

    def take(self, size: int) -> int:
        if not size:
            return 0
        best = -1
        for at, length in enumerate(self._sizes):
            if length >= size and (best < 0 or length < self._sizes[best]):
                best = at
        if best >= 0:
            offset = self._starts[best]
            self._shrink(best, size)
            return offset
        if self._starts and self._starts[-1] + self._sizes[-1] == self.top:
            # The last block reaches the top: grow it.
            offset = self._starts.pop()
            self._sizes.pop()
        else:
            offset = self.top
        self.top = offset + size
        return offset

    def _shrink(self, at: int, size: int) -> None:
        if self._sizes[at] == size:
            del self._starts[at], self._sizes[at]
        else:
            self._starts[at] += size
            self._sizes[at] -= size

    def free(self, offset: int, size: int) -> None:
        at = bisect_left(self._starts, offset)
        if at and self._starts[at - 1] + self._sizes[at - 1] == offset:
            at -= 1
            self._sizes[at] += size
        else:
            self._starts.insert(at, offset)
            self._sizes.insert(at, size)
        if at + 1 < len(self._starts) and self._starts[at] + self._sizes[at] == self._starts[at + 1]:
            self._sizes[at] += self._sizes[at + 1]
            del self._starts[at + 1], self._sizes[at + 1]


def _equal_slots(items: list[tuple[int, int, str, Expr]], base: Expr) -> tuple[dict[str, Expr], Expr]:
    """Offsets from ``base`` on for symbolic sizes: a slot is used again only by a buffer of the same size."""
    offsets: dict[str, Expr] = {}
    slots: dict[Expr, list[tuple[int, Expr]]] = {}
    total = base
    for start, end, name, size in sorted(items, key=lambda i: (i[0], i[2])):
        free = slots.setdefault(size, [])
        for at in range(len(free) - 1, -1, -1):
            if free[at][0] < start:
                offsets[name] = free.pop(at)[1]
                break
        else:
            offsets[name] = total
            total = total + size
        free.append((end, offsets[name]))
    return offsets, total
