"""Python's cyclic garbage collector, held off while something long is built."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Hashable, Iterator

__all__ = ["collector_held", "hold_collector", "release_collector"]

_lock = threading.Lock()
_holders: set[Hashable] = set()
"""Who holds the collector now."""
_was_on = False


def hold_collector(holder: Hashable) -> None:
    """Stop automatic collections, in all threads, until ``holder`` and every other holder has released them."""
    global _was_on
    with _lock:
        if not _holders:
            _was_on = gc.isenabled()
            gc.disable()
        _holders.add(holder)


def release_collector(holder: Hashable) -> None:
    """End what ``hold_collector`` began; the last holder leaves the collector as the first found it."""
    with _lock:
        if holder not in _holders:
            return
        _holders.remove(holder)
        if not _holders and _was_on:
            gc.enable()


@contextlib.contextmanager
def collector_held(*, lasting: bool = False) -> Iterator[None]:
    """No automatic collection inside: what a compiler builds lives on, and would be walked in vain each time.

    ``lasting``: all of it lives on, so that it counts as old afterwards and quick collections do not walk it either.
    """
    holder = object()
    hold_collector(holder)
    try:
        yield
    finally:
        if lasting and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        release_collector(holder)
