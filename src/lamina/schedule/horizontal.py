"""Horizontal groups: independent nests in one launch.

Small neighbours share a launch because their launches cost more than they do. On a GPU nests that differ only in their
buffers and their length (an optimizer's update of every parameter) share one wherever they stand, as long as what they
write lives through the whole call anyway: taking them early then needs no memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lamina.ir.access import reads, writes
from lamina.ir.grouped import form
from lamina.ir.index import prod
from lamina.ir.loops import Buffer, LibraryCall, Nest, Step
from lamina.schedule.errors import adds_to, may_raise
from lamina.schedule.flatten import flatten
from lamina.schedule.order import dependences

__all__ = ["GroupedStep", "group_launches", "small_together"]

GroupedStep = tuple[Nest, ...] | LibraryCall
"""Nests of one launch, or a library call."""

_SMALL = 16384
"""Points up to which a nest costs less than a few launches."""
_MOST_SMALL = 16
"""Small nests that share a launch at most: the text grows with each, and so does its compilation."""
_MOST_POINTERS = 240
"""Beyond, the choice among them costs registers (sm_90: 66 for 250, 228 for 500); a launch takes 4096 bytes."""


def group_launches(steps: Sequence[Step], buffers: Mapping[str, Buffer], lasting: set[str]) -> list[GroupedStep]:
    """Steps in groups, nests of one form together; ``lasting`` are the buffers that live through the whole call."""
    before = dependences(steps)
    result: list[GroupedStep] = []
    place: list[int] = []
    opened: dict[object, int] = {}
    for at, step in enumerate(steps):
        key = _key(step, buffers, lasting)
        group = opened.get(key) if key is not None else None
        if group is not None and all(place[p] < group for p in before[at]):
            members = result[group]
            assert isinstance(members, tuple)
            assert isinstance(step, Nest)
            if (len(members) + 1) * len(reads(step) | writes(step)) <= _MOST_POINTERS:
                result[group] = (*members, step)
                place.append(group)
                continue
        if key is not None:
            opened[key] = len(result)
        place.append(len(result))
        result.append((step,) if isinstance(step, Nest) else step)
    return result


def _key(step: Step, buffers: Mapping[str, Buffer], lasting: set[str]) -> object:
    """What equal nests share, ``None`` for a step that stays where it is.

    Lengths that are no multiple of an access's elements stay apart: they would make the others' accesses narrow.
    """
    if not isinstance(step, Nest) or not writes(step) <= lasting:
        return None
    flat = flatten((step,), buffers)
    found = form(flat.nests[0])
    if found is None or flat.sizes:
        return None
    dtypes = tuple(flat.dtypes[int(b[1:])] for b in found.buffers)
    return found.nest, dtypes, found.length is None or found.length % 8 == 0


def small_together(steps: Iterable[GroupedStep], inputs: frozenset[str] = frozenset()) -> list[GroupedStep]:
    """Neighbouring small nests that do not touch each other's results, together.

    None of them may raise if others write to ``inputs``.
    """
    result: list[GroupedStep] = []
    group: list[Nest] = []
    read: set[str] = set()
    written: set[str] = set()

    def close() -> None:
        if group:
            result.append(tuple(group))
        group.clear()
        read.clear()
        written.clear()

    for step in steps:
        if isinstance(step, LibraryCall) or len(step) > 1:
            close()
            result.append(step)
            continue
        (nest,) = step
        reading, writing = reads(nest), writes(nest)
        apart = not (written & (reading | writing) or read & writing)
        apart = apart and (not inputs or not _errs_while_writing([*group, nest], inputs))
        if not (apart and len(group) < _MOST_SMALL and _is_small(nest)) or not all(_is_small(n) for n in group[:1]):
            close()
        group.append(nest)
        read.update(reading)
        written.update(writing)
    close()
    return result


def _errs_while_writing(nests: Sequence[Nest], inputs: frozenset[str]) -> bool:
    """Whether some of ``nests`` may raise and others, which do not or do not only overwrite, write to ``inputs``."""
    updating = [n for n in nests if not inputs.isdisjoint(writes(n))]
    return any(map(may_raise, nests)) and any(not may_raise(n) or adds_to(n, inputs) for n in updating)


def _is_small(nest: Nest) -> bool:
    points = prod(axis.extent for axis in nest.axes)
    return points.is_int and points.const <= _SMALL
