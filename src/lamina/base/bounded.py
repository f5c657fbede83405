"""Caches that live as long as the process and hold no more than so many entries."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TypeVar

__all__ = ["remember"]

K = TypeVar("K")
V = TypeVar("V")


def remember(cache: MutableMapping[K, V], key: K, value: V, most: int) -> V:
    """Put ``value`` into ``cache`` and give it back. A cache with ``most`` entries is emptied before.

    Emptying costs less to keep up than an order of use does: what is asked for again is found again once.
    """
    if len(cache) >= most:
        cache.clear()
    cache[key] = value
    return value
