"""Memory of results: large ones come from blocks that are used again once nothing refers to them any more.

A block is an ordinary storage of torch. It is free when its reference counts say that only the pool holds it, so there
is nothing to be told when a tensor dies, and results are ordinary tensors: resizable, shareable, without a base.
What differs from ``torch.empty_strided``: the memory of a dead result stays with the process until the pool needs the
room (``release_blocks`` gives it back at once), and a weak reference to its storage stays alive as long.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache

import torch

from lamina.runtime import torch_private
from lamina.runtime.arena import HUGE_PAGE, keep_workspaces
from lamina.runtime.torch_private import CAN_COUNT_USES, empty_strided_cpu, one_variable, reinterpret, storage_uses

__all__ = [
    "LARGE",
    "BlockPool",
    "empty",
    "empty_large",
    "empty_small",
    "empty_temporary",
    "keep_at_most",
    "only_owner",
    "release_blocks",
]

LARGE = 1 << 20  # bytes from which a result is worth a block


_SPARE = 64 << 20
"""Bytes of free blocks that stay beside those in use whatever their sizes."""


class _Block:
    """A storage, and the reference counts that it has while only this object holds it."""

    __slots__ = ("address", "counts", "memory", "nbytes", "storage", "taken")

    def __init__(self, nbytes: int, dtype: torch.dtype) -> None:
        # A result must not be an inference tensor because the block was made in inference mode.
        with torch.inference_mode(False):
            self.memory = torch.empty(nbytes // dtype.itemsize, dtype=dtype, device="cpu")
        self.nbytes = nbytes
        self.taken = 0
        """How many times blocks had been taken when this one was last."""
        self.storage = self.memory.untyped_storage()
        self.address = self.memory.data_ptr()
        _advise_huge_pages(self.address, nbytes)
        self.counts = self._counts()

    def _counts(self) -> tuple[int, int]:
        # The Python object of a storage is shared by all who ask for it, so the count of uses misses
        # those who hold only that object; Python's own count has them.
        return storage_uses(self.storage), sys.getrefcount(self.storage)

    def is_free(self) -> bool:
        """Whether nothing but this object refers to the storage, and the storage is as it was made."""
        return self._counts() == self.counts

    def is_intact(self) -> bool:
        """Whether the memory was not replaced, by ``resize_`` or by ``share_memory_``, which is memory elsewhere."""
        return self.memory.data_ptr() == self.address and self.storage.nbytes() == self.nbytes

    def tensor(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A new tensor at the block's beginning."""
        if dtype is self.memory.dtype:
            return reinterpret(self.memory, shape, strides, 0)
        with torch.inference_mode(False):
            whole = self.memory.view(torch.uint8)[: self.nbytes // dtype.itemsize * dtype.itemsize].view(dtype)
        return reinterpret(whole, shape, strides, 0)


class BlockPool:
    """At most ``limit`` bytes of blocks, in use or free. For a new one, free blocks make room first, the least recently
    used before the others; then blocks in use, whose tensors keep them but whose memory will not be used again.

    Beside what is in use, a new block leaves at most ``spare`` bytes or an eighth of it free: what was used at
    different times, in different sizes, is not kept side by side. All methods may be called from any thread.
    """

    def __init__(self, limit: int, spare: int = _SPARE) -> None:
        self.limit, self.spare = limit, spare
        self.nbytes = 0
        self._takes = 0
        # By size, the most recently taken last.
        self._blocks: dict[int, deque[_Block]] = {}
        # Reentrant, because a garbage collection inside may run code that uses the pool again. A block that is being
        # looked at is therefore taken out of its queue meanwhile.
        self._guard = threading.RLock()

    def take(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, nbytes: int) -> torch.Tensor:
        """A new tensor with undefined content; ``nbytes`` is what its elements span, from the first to the last."""
        return self._take(shape, strides, dtype, nbytes, exact=True)

    def take_temporary(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, nbytes: int
    ) -> torch.Tensor:
        """The same for a tensor that nobody outside sees, whose storage may be larger than what it spans."""
        return self._take(shape, strides, dtype, nbytes, exact=False)

    def _take(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, nbytes: int, *, exact: bool
    ) -> torch.Tensor:
        if nbytes > self.limit:
            return empty_strided_cpu(shape, strides, dtype)
        with self._guard:
            block = self._find(nbytes) or (None if exact else self._find_larger(nbytes))
            if block is None:
                self._make_room(nbytes)
                block = _Block(nbytes, dtype)
                self.nbytes += nbytes
            result = block.tensor(shape, strides, dtype)
            self._takes += 1
            block.taken = self._takes
            self._blocks.setdefault(block.nbytes, deque()).append(block)
        return result

    def keep_at_most(self, limit: int) -> None:
        """Have another limit, and forget what is above it."""
        with self._guard:
            self.limit = limit
            self._make_room(0)

    def release(self) -> None:
        """Forget every block: free ones return to the system now, others when their tensors die."""
        with self._guard:
            self._blocks.clear()
            self.nbytes = 0

    def renew_lock(self) -> None:
        """In a forked child: the lock may have been held by a thread that does not exist here."""
        self._guard = threading.RLock()

    def only_owner(self, references: int, tensor: torch.Tensor) -> bool | None:
        """Whether nothing but one variable of the caller, and the pool, holds the tensor or its memory; ``None`` if the
        memory is not the pool's. ``references`` is what the caller's ``sys.getrefcount`` says of the variable.
        """
        with self._guard:
            address, nbytes = tensor.data_ptr(), tensor.nbytes
            for block in self._blocks.get(nbytes, ()):
                if block.address == address:
                    uses, count = block.counts
                    only = one_variable(references, tensor)
                    return only and block.is_intact() and block._counts() == (uses + 1, count)
        return None

    def _find(self, nbytes: int) -> _Block | None:
        """The free block of this size that was taken last, which caches may still hold, out of its queue."""
        blocks = self._blocks.get(nbytes)
        for _ in range(len(blocks) if blocks else 0):
            if not blocks:
                return None
            block = blocks.pop()
            if not block.is_free():
                blocks.appendleft(block)
            elif block.is_intact():
                return block
            else:
                self.nbytes -= block.nbytes
        return None

    def _find_larger(self, nbytes: int) -> _Block | None:
        """A free block of at most twice the size, the smallest first, out of its queue."""
        for size in sorted(n for n in tuple(self._blocks) if nbytes < n <= 2 * nbytes):
            block = self._find(size)
            if block is not None:
                return block
        return None

    def _make_room(self, wanted: int) -> None:
        """Forget free blocks until few are left beside what is in use, and, for the limit, what is in use."""
        blocks = sorted((b for found in tuple(self._blocks.values()) for b in tuple(found)), key=lambda b: b.taken)
        free = {id(block) for block in blocks if block.is_free()}
        used = self.nbytes - sum(block.nbytes for block in blocks if id(block) in free)
        most = used + max(self.spare, used // 8)
        for block in blocks:
            if id(block) in free and self.nbytes > min(most, self.limit - wanted):
                self._forget(block)
        for block in blocks:
            if id(block) not in free and self.nbytes > self.limit - wanted:
                self._forget(block)

    def _forget(self, block: _Block) -> None:
        blocks = self._blocks.get(block.nbytes, deque())
        if block in blocks:  # else a garbage collection inside has run code that took it
            blocks.remove(block)
            self.nbytes -= block.nbytes
        if not blocks:
            self._blocks.pop(block.nbytes, None)


def _advise_huge_pages(address: int, nbytes: int) -> None:
    first, end = -(-address // HUGE_PAGE) * HUGE_PAGE, (address + nbytes) // HUGE_PAGE * HUGE_PAGE
    if end > first and _MADVISE is not None:
        _MADVISE(first, end - first, mmap.MADV_HUGEPAGE)  # advice: failing changes nothing


def _find_madvise() -> Callable[[int, int, int], int] | None:
    try:
        found = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found if hasattr(mmap, "MADV_HUGEPAGE") else None


@cache
def _share_of_machine() -> int:
    """An eighth of the machine's memory, in bytes."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8
    except (ValueError, OSError):
        return 256 << 20


_MADVISE = _find_madvise()
_POOL = BlockPool(min(_share_of_machine(), 2 << 30))

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_POOL.renew_lock)

empty_small = empty_strided_cpu


def empty_large(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, nbytes: int) -> torch.Tensor:
    """As ``torch.empty_strided`` on the CPU, for a result known to span ``nbytes`` bytes, at least ``LARGE``."""
    if not CAN_COUNT_USES:
        return empty_strided_cpu(shape, strides, dtype)
    return _POOL.take(shape, strides, dtype, nbytes)


def empty(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """As ``torch.empty_strided`` on the CPU."""
    span = 1
    for size, stride in zip(shape, strides, strict=True):
        if size == 0:
            return empty_strided_cpu(shape, strides, dtype)
        span += (size - 1) * stride
    nbytes = span * dtype.itemsize
    if nbytes < LARGE:
        return empty_strided_cpu(shape, strides, dtype)
    return empty_large(shape, strides, dtype, nbytes)


def empty_temporary(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, nbytes: int) -> torch.Tensor:
    """As ``empty_large``, for what no call hands out: its storage may be larger."""
    if not CAN_COUNT_USES:
        return empty_strided_cpu(shape, strides, dtype)
    return _POOL.take_temporary(shape, strides, dtype, nbytes)


def only_owner(references: int, tensor: torch.Tensor) -> bool:
    """Whether nothing holds the tensor but one variable of the caller, nor anything else any of its memory but the
    pool. ``references`` is what the caller's ``sys.getrefcount`` says of the variable.
    """
    found = _POOL.only_owner(references, tensor)
    return torch_private.only_owner(references, tensor) if found is None else found


def keep_at_most(limit: int) -> None:
    """Keep at most ``limit`` bytes, and an eighth of the machine's memory, between calls: in blocks, in workspaces."""
    limit = min(limit, _share_of_machine())
    if limit != _POOL.limit:
        _POOL.keep_at_most(limit)
        keep_workspaces(limit)


def release_blocks() -> None:
    """Return the memory of dead results to the system."""
    _POOL.release()
