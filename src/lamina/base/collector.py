"""Python's cyclic garbage collector, held off while something long is built."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Hashable, Iterator
from operator import call

__all__ = ["collector_held", "hold_collector", "release_collector"]

_holders: set[Hashable] = set()
"""Who holds the collector now."""
_switched_off = False
"""Whether the collector is off because somebody holds it, and not because the program has it off."""
_frozen_by_others = False
"""Whether somebody else was seen to keep objects from all collections. How many they are takes a walk through them."""


def hold_collector(holder: Hashable) -> None:
    """Stop automatic collections, in all threads, until ``holder`` and every other holder has released them.

    No lock is taken, which who is interrupted might keep for good: a thread that begins while the last holder ends may
    find the collector on, which only takes time, and whoever releases it next sets right what an interrupt left.
    """
    global _switched_off
    _holders.add(holder)
    if gc.isenabled():
        _switched_off = True
        gc.disable()


def release_collector(holder: Hashable) -> None:
    """End what ``hold_collector`` began; the last holder leaves the collector as the first found it."""
    global _switched_off
    _holders.discard(holder)
    while _switched_off and not _holders:
        gc.enable()
        _switched_off = False
        if not gc.isenabled():  # another thread has begun meanwhile, and may have ended
            _switched_off = True


class _Holder:
    """Who holds the collector at most for as long as it lives: an interrupt may keep it from saying that it ends."""

    def __del__(self) -> None:
        release_collector(id(self))


@contextlib.contextmanager
def collector_held(*, lasting: bool = False) -> Iterator[None]:
    """No automatic collection inside: what a compiler builds lives on, and would be walked in vain each time.

    ``lasting``: all of it lives on, so that it counts as old afterwards and quick collections do not walk it either.
    """
    holder = _Holder()
    hold_collector(id(holder))
    try:
        yield
    finally:
        if lasting:
            _count_as_old()
        release_collector(id(holder))


def _count_as_old() -> None:
    """Let all objects that there are count as old, unless the program keeps some from collections, which would end."""
    global _frozen_by_others
    _frozen_by_others = _frozen_by_others or gc.get_freeze_count() > 0
    if not _frozen_by_others:
        tuple(map(call, (gc.freeze, gc.unfreeze)))  # one step of the interpreter's, between which no interrupt comes
