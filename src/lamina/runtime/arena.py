"""Memory that lasts no longer than a call: one workspace per call, laid out by the compiler, used again by the next.

A fresh page costs more than most kernels do with it, so the memory of a workspace is kept, on huge pages where the
system gives them. Regions share their workspaces: those that run one after another find the memory still in the
processor's caches.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

__all__ = ["ALIGNMENT", "HUGE_PAGE", "Arena", "Workspace", "allocate_pages", "keep_workspaces", "release_workspaces"]

ALIGNMENT = 64  # bytes; a cache line, and the widest vector
HUGE_PAGE = 2 << 20
"""Bytes of a huge page of Linux on x86-64; where pages differ the advice to use them has no effect."""
_KEPT = 4  # idle workspaces: one is enough unless threads run side by side
_KEPT_PROGRAMS = 512  # whose tensors a workspace remembers


class _Held(dict[object, tuple[Any, ...]]):
    """What programs made of a workspace, by program. Emptied when there are many, so that dead programs are let go."""

    def __setitem__(self, key: object, value: tuple[Any, ...]) -> None:
        if len(self) >= _KEPT_PROGRAMS:
            self.clear()
        super().__setitem__(key, value)


class Workspace:
    """``nbytes`` of memory at ``address`` (a multiple of 64), for one call at a time.

    Tensors made of it are for use inside the call only: the next call overwrites them. ``held`` keeps what a program
    made of it, for the next call of the same program, under a key of the program's own.
    """

    __slots__ = ("_bytes", "_typed", "address", "held", "nbytes")

    def __init__(self, nbytes: int) -> None:
        # Inference tensors could not be written to outside of inference mode, and a workspace outlives the mode.
        with torch.inference_mode(False):
            self._bytes = allocate_pages(nbytes)
        self.address, self.nbytes = self._bytes.data_ptr(), nbytes
        self._typed: dict[torch.dtype, torch.Tensor] = {torch.uint8: self._bytes}
        self.held: dict[object, tuple[Any, ...]] = _Held()

    def typed(self, dtype: torch.dtype) -> torch.Tensor:
        """All of the workspace as a vector of ``dtype``."""
        typed = self._typed.get(dtype)
        if typed is None:
            with torch.inference_mode(False):  # a view that is made in the mode is an inference tensor
                typed = self._typed[dtype] = self._bytes.view(dtype)
        return typed

    def tensor(self, offset: int, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor that begins ``offset`` bytes into the workspace (a multiple of the element size); strides count
        elements. Raises torch's ``RuntimeError`` for one that would lie outside.
        """
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                return self.tensor(offset, shape, strides, dtype)
        typed = self.typed(dtype)
        return typed.as_strided(shape, strides, typed.storage_offset() + offset // dtype.itemsize)


class Arena:
    """Where host programs get their workspaces. Safe to use from several threads: each call has one to itself.

    A host program takes one at its start and gives it back at its end; one that is not given back because of an
    exception is simply freed.
    """

    __slots__ = ()

    def take(self, nbytes: int) -> Workspace:
        """A workspace of at least ``nbytes`` bytes, its content undefined."""
        tried: list[Workspace] = []
        found: Workspace | None = None
        while _IDLE:
            try:
                workspace = _IDLE.pop()  # the last one used, which the caches may still hold
            except IndexError:  # another thread was faster
                break
            if workspace.nbytes >= nbytes:
                found = workspace
                break
            tried.append(workspace)
        if found is None:
            # One that was too small is replaced by the new one, else sizes that grow would pile up.
            tried = tried[1:]
            found = Workspace(_rounded(nbytes))
        _IDLE.extendleft(tried)
        return found

    def give(self, workspace: Workspace) -> None:
        """Give back a workspace that no tensor is used of any more."""
        if workspace.nbytes > _LARGEST[0]:
            return
        _IDLE.append(workspace)
        if len(_IDLE) > _KEPT:
            try:
                _IDLE.popleft()
            except IndexError:  # another thread was faster
                return


_IDLE: deque[Workspace] = deque()
"""Workspaces that are not in use. Operations on a deque are atomic, so no lock is needed, and none can be held when a
process forks."""


_LARGEST = [2 << 30]
"""Bytes of the largest workspace that is kept."""


def keep_workspaces(limit: int) -> None:
    """Keep no workspace of more than ``limit`` bytes between calls."""
    _LARGEST[0] = limit
    for workspace in tuple(_IDLE):
        if workspace.nbytes > limit:
            with suppress(ValueError):  # another thread has taken it
                _IDLE.remove(workspace)


def release_workspaces() -> None:
    """Return the memory of all workspaces that are not in use to the system."""
    _IDLE.clear()


def allocate_pages(nbytes: int) -> torch.Tensor:
    """``nbytes`` fresh bytes, aligned to 64, on huge pages if they are many and the system has them."""
    huge = nbytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE")
    try:
        # Private: a forked child must not write to its parent's memory, which is what Python maps by default.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        pages = mmap.mmap(-1, nbytes + (HUGE_PAGE if huge else 0) or 1, flags=flags)
        if huge:
            pages.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # no such advice, or a limit on mappings: the allocator may still have something
        return _aligned(torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8, device="cpu"), ALIGNMENT, nbytes)
    return _aligned(torch.frombuffer(pages, dtype=torch.uint8), HUGE_PAGE if huge else ALIGNMENT, nbytes)


def _aligned(memory: torch.Tensor, alignment: int, nbytes: int) -> torch.Tensor:
    skip = -memory.data_ptr() % alignment
    return memory[skip : skip + nbytes]


def _rounded(nbytes: int) -> int:
    unit = HUGE_PAGE if nbytes >= HUGE_PAGE else mmap.PAGESIZE
    return max(1, -(-nbytes // unit)) * unit
