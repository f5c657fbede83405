"""The order of steps: one that needs less memory and keeps producers near their consumers, where that exists.

The given order is always legal; another is taken only when a simulation says that it is better. What must stay in
order: a reader after the writer it reads from, a writer that overwrites a buffer after everybody who reads the old
contents, calls that draw random numbers or only have an effect among themselves, and what may raise before what writes
to inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.ir.access import reads, views, writes
from lamina.ir.index import Expr, Size
from lamina.ir.library import has_effect, may_alias
from lamina.ir.loops import Buffer, BufferView, LibraryCall, SizeInput, Step, storage_bytes
from lamina.ir.plan import PlanStep
from lamina.schedule.errors import inputs_in_memory, writes_after_errors

__all__ = ["dependences", "order", "peak_bytes"]

_TYPICAL_SIZE = 256
"""Stands for a size known only at run time when orders are compared."""

_EFFECT = "(effect)"
"""Stands for the random generator's state and the outside world among the buffers that steps write."""

_SLACK = 0.99
"""Another order must need less than this share of the given one's memory to be worth a change."""


def order(
    steps: Sequence[Step],
    buffers: Mapping[str, Buffer],
    inputs: Sequence[str | SizeInput | None],
    outputs: Sequence[BufferView | Expr | None],
) -> tuple[Step, ...]:
    """The steps in the order to run them. Returns them unchanged when no better order is found."""
    given = tuple(steps)
    if len(given) < 3:
        return given
    before = [a | b for a, b in zip(dependences(given), _errors(given, buffers), strict=True)]
    memory = _Memory(given, buffers, inputs, outputs)
    best = list(range(len(given)))
    for other in (_greedy(given, before, memory), best):
        for found in (other, _late(other, before, memory)):
            if found != best and _is_better(memory.simulate(found), memory.simulate(best)):
                best = found
    return given if best == list(range(len(given))) else tuple(given[i] for i in best)


def _is_better(new: tuple[int, int], old: tuple[int, int]) -> bool:
    return new[0] < old[0] * _SLACK or (new[0] <= old[0] and new[1] < old[1])


def peak_bytes(
    steps: Sequence[Step | PlanStep],
    buffers: Mapping[str, Buffer],
    inputs: Sequence[str | SizeInput | None],
    outputs: Sequence[BufferView | Expr | None],
) -> int:
    """Most bytes of results alive at once when steps run in this order (256 for sizes known only at run time)."""
    return _Memory(steps, buffers, inputs, outputs).simulate(list(range(len(steps))))[0]


def dependences(steps: Sequence[Step]) -> list[set[int]]:
    """For each step, the earlier steps that must run before it.

    Using a result that may be a view of another buffer counts as using that buffer.
    """
    before: list[set[int]] = []
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    behind: dict[str, set[str]] = {}
    for at, step in enumerate(steps):
        read, written = set(reads(step)), set(writes(step))
        if behind:
            read |= {base for name in read for base in behind.get(name, ())}
            written |= {base for name in written for base in behind.get(name, ())}
        if isinstance(step, LibraryCall):
            if may_alias(step.op):
                bases = {base for view in views(step) for base in (view.buffer, *behind.get(view.buffer, ()))}
                behind.update({out: bases for out in step.outs if out is not None})
            if has_effect(step.op):
                written.add(_EFFECT)
        found = {writer[name] for name in read | written if name in writer}
        for name in written:
            found.update(readers.pop(name, ()))
            writer[name] = at
        for name in read - written:
            readers.setdefault(name, []).append(at)
        before.append(found)
    return before


def _errors(steps: Sequence[Step], buffers: Mapping[str, Buffer]) -> list[set[int]]:
    return writes_after_errors(steps, inputs_in_memory(buffers.values()))


class _Memory:
    """Bytes that each step brings to life, and who uses them."""

    def __init__(
        self,
        steps: Sequence[Step | PlanStep],
        buffers: Mapping[str, Buffer],
        inputs: Sequence[str | SizeInput | None],
        outputs: Sequence[BufferView | Expr | None],
    ) -> None:
        given = {name for name in inputs if isinstance(name, str)}
        self.kept = {out.buffer for out in outputs if isinstance(out, BufferView)}
        self.touched = [sorted((reads(s) | writes(s)) - given) for s in steps]
        self.sizes = {name: _typical(storage_bytes(buffers[name])) for names in self.touched for name in names}
        # Inputs that the caller keeps cost nothing, those that only the program holds are free after their last use.
        self.read = [reads(s) for s in steps]
        self.given = {name: _typical(storage_bytes(buffers[name])) for names in self.read for name in names & given}
        self.uses: dict[str, int] = {}
        for names in self.touched:
            for name in names:
                self.uses[name] = self.uses.get(name, 0) + 1

    def simulate(self, positions: Sequence[int]) -> tuple[int, int]:
        """Peak bytes, and the sum over uses of bytes times steps since the last use: small is warm in the caches."""
        left = dict(self.uses)
        latest: dict[str, int] = {}
        alive = peak = distance = 0
        for now, at in enumerate(positions):
            for name in self.touched[at]:
                if name in latest:
                    distance += self.sizes[name] * (now - latest[name])
                else:
                    alive += self.sizes[name]
                latest[name] = now
            peak = max(peak, alive)
            for name in self.touched[at]:
                left[name] -= 1
                if not left[name] and name not in self.kept:
                    alive -= self.sizes[name]
        return peak, distance


def _greedy(steps: Sequence[Step], before: Sequence[set[int]], memory: _Memory) -> list[int]:
    """Always the ready step that adds the fewest bytes; among equals the one whose operands are the warmest."""
    waiting = [len(b) for b in before]
    after: list[list[int]] = [[] for _ in steps]
    for at, found in enumerate(before):
        for other in found:
            after[other].append(at)
    left = dict(memory.uses)
    latest: dict[str, int] = {}
    ready = [at for at, count in enumerate(waiting) if not count]
    result: list[int] = []

    def rank(at: int) -> tuple[int, int, int]:
        added = warmth = 0
        for name in memory.touched[at]:
            if name not in latest:
                added += memory.sizes[name]
            else:
                warmth = max(warmth, latest[name] + 1)
            if left[name] == 1 and name not in memory.kept:
                added -= memory.sizes[name]
        return added, -warmth, at

    while ready:
        best = min(ready, key=rank)
        ready.remove(best)
        for name in memory.touched[best]:
            latest[name] = len(result)
            left[name] -= 1
        result.append(best)
        for other in after[best]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return result


def _late(positions: Sequence[int], before: Sequence[set[int]], memory: _Memory) -> list[int]:
    """The order with those steps moved to right before their first dependent whose results take more than they free.

    The greedy order begins with everything that reads inputs alone and is small, such as weights in another layout.
    """
    after: list[list[int]] = [[] for _ in positions]
    for at, found in enumerate(before):
        for other in found:
            after[other].append(at)
    place = {at: now for now, at in enumerate(positions)}
    first = {name: at for at in reversed(positions) for name in memory.touched[at]}
    anchor: dict[int, int] = {}
    ends: dict[str, int] = {}
    for at in reversed(positions):
        anchor[at] = place[at]
        names = [*memory.touched[at], *(memory.read[at] & memory.given.keys())]
        made = sum(memory.sizes[name] for name in memory.touched[at] if first[name] == at)
        if made and after[at]:
            target = min(anchor[other] for other in after[at])
            old = [name for name in names if first.get(name) != at]
            held = sum(
                memory.sizes.get(name, 0) or memory.given.get(name, 0)
                for name in old
                if ends.get(name, -1) < target and name not in memory.kept
            )
            if held <= made:
                anchor[at] = target
        for name in names:
            ends[name] = max(ends.get(name, -1), anchor[at])
    return sorted(positions, key=lambda at: (anchor[at], place[at]))


def _typical(size: Expr) -> int:
    if size.is_int:
        return size.const
    return max(0, int(size.evaluate({a.name: _TYPICAL_SIZE for a in size.atoms() if isinstance(a, Size)})))
