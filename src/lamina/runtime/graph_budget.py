"""How much of a GPU's memory recordings may keep that nobody asked for."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import cache

import torch

from lamina.base.reasons import Reason
from lamina.runtime import reasons

__all__ = ["GraphBudget", "GraphShare", "graph_budget", "pool_bytes"]

_OF_THE_PROGRAM, _LEAST = 33, 128 << 20
"""Recordings that nobody asked for keep one part in so many (3 %) of the most memory that the program has had in use,
or so many bytes: a replay's temporaries lie beside those of all other calls, not in the same memory after them.
"""
_ROOM = 4
"""Times a recording's bytes that must be free, so that the program still finds memory."""
_MIB = 1 << 20
"""Bytes of a mebibyte."""
_COMMON = (0, 0)
"""The pool that is no graph's."""


class GraphBudget:
    """``limit()`` bytes for the recordings of all regions of a process on one GPU; ``free()`` are those still free."""

    def __init__(self, limit: Callable[[], int], free: Callable[[], int]) -> None:
        self.limit, self.free = limit, free
        self.taken = 0
        self.guard = threading.RLock()  # a collection, which gives shares back, may begin anywhere

    def share(self, owner: object) -> GraphShare:
        """What ``owner`` takes of it, given back when that is gone."""
        share = GraphShare(self)
        weakref.finalize(owner, share.give_back).atexit = False
        return share

    def refusal(self, nbytes: int, limit: int) -> Reason:
        """Why ``nbytes`` more are beyond ``limit``, in words."""
        return reasons.BUDGET_TAKEN(mib=nbytes // _MIB, kept=self.taken // _MIB, limit=limit // _MIB)


class GraphShare:
    """What the recordings of one region take of a budget."""

    def __init__(self, budget: GraphBudget) -> None:
        self._budget = budget
        self.taken = 0

    def take(self, nbytes: int) -> Reason | None:
        """Take ``nbytes``; why not, or ``None``."""
        budget, limit = self._budget, self._budget.limit()
        if budget.taken + nbytes > limit:  # before what is free is asked for, which takes longer
            return budget.refusal(nbytes, limit)
        free = budget.free()
        with budget.guard:
            if budget.taken + nbytes > limit:
                return budget.refusal(nbytes, limit)
            if free < _ROOM * nbytes:
                return reasons.LITTLE_FREE(mib=nbytes // _MIB)
            budget.taken += nbytes
            self.taken += nbytes
            return None

    def add(self, nbytes: int) -> None:
        """Take so much more, or less, than was expected of a recording that is made."""
        with self._budget.guard:
            self._budget.taken += nbytes
            self.taken += nbytes

    def give_back(self) -> None:
        """Give everything back."""
        with self._budget.guard:
            self._budget.taken -= self.taken
            self.taken = 0


@cache  # GPUs of the machine
def graph_budget(device: int) -> GraphBudget:
    """The budget of this process on GPU number ``device``."""

    def free() -> int:
        total, allocated = pool_bytes(device).get(_COMMON, (0, 0))
        return int(torch.cuda.mem_get_info(device)[0]) + total - allocated

    def limit() -> int:
        return max(_LEAST, torch.cuda.max_memory_allocated(device) // _OF_THE_PROGRAM)

    return GraphBudget(limit, free)


def pool_bytes(device: int) -> dict[tuple[int, ...], tuple[int, int]]:
    """Of each memory pool of torch's allocator on GPU number ``device``, by its id: all its bytes and those in use."""
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
        if segment.get("device", device) == device:
            pool = tuple(segment.get("segment_pool_id", _COMMON))
            total, used = found.get(pool, (0, 0))
            found[pool] = total + int(segment["total_size"]), used + int(segment["allocated_size"])
    return found
