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
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

import torch

from lamina.runtime.torch_private import CAN_COUNT_USES, empty_strided_cpu, reinterpret, storage_uses

__all__ = ["LARGE", "BlockPool", "empty", "empty_large", "empty_small", "release_blocks"]

LARGE = 1 << 20  # bytes from which a result is worth a block
_HUGE_PAGE = 2 << 20
"""Bytes of a huge page of Linux on x86-64; where pages differ the advice to use them has no effect."""


class _Block:
    """A storage, and the reference counts that it has while only this object holds it."""

    __slots__ = ("address", "counts", "memory", "nbytes", "storage")

    def __init__(self, nbytes: int, dtype: torch.dtype) -> None:
        # A result must not be an inference tensor because the block was made in inference mode.
        with torch.inference_mode(False):
            self.memory = torch.empty(nbytes // dtype.itemsize, dtype=dtype, device="cpu")
        self.nbytes = nbytes
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


class BlockPool:
    """At most ``limit`` bytes of blocks, in use or free. For a new one, free blocks make room first, the least recently
    used before the others; then blocks in use, whose tensors keep them but whose memory will not be used again.

    All methods may be called from any thread.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self._blocks: OrderedDict[tuple[int, torch.dtype], deque[_Block]] = OrderedDict()
        # Reentrant, because a garbage collection inside may run code that uses the pool again. A block that is being
        # looked at is therefore taken out of its queue meanwhile.
        self._guard = threading.RLock()

    def take(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, nbytes: int) -> torch.Tensor:
        """A new tensor with undefined content; ``nbytes`` is what its elements span, from the first to the last."""
        if nbytes > self.limit:
            return empty_strided_cpu(shape, strides, dtype)
        key = (nbytes, dtype)
        with self._guard:
            block = self._find(key)
            if block is None:
                self._make_room(nbytes)
                block = _Block(nbytes, dtype)
                self.nbytes += nbytes
            result = reinterpret(block.memory, shape, strides, 0)
            self._blocks.setdefault(key, deque()).append(block)
            self._blocks.move_to_end(key)
        return result

    def release(self) -> None:
        """Forget every block: free ones return to the system now, others when their tensors die."""
        with self._guard:
            self._blocks.clear()
            self.nbytes = 0

    def renew_lock(self) -> None:
        """In a forked child: the lock may have been held by a thread that does not exist here."""
        self._guard = threading.RLock()

    def _find(self, key: tuple[int, torch.dtype]) -> _Block | None:
        """A free block, taken out of its queue."""
        blocks = self._blocks.get(key)
        for _ in range(len(blocks) if blocks else 0):
            if not blocks:
                return None
            block = blocks.popleft()
            if not block.is_free():
                blocks.append(block)
            elif block.is_intact():
                return block
            else:
                self.nbytes -= block.nbytes
        return None

    def _make_room(self, wanted: int) -> None:
        for only_free in (True, False):
            for key in tuple(self._blocks):
                if self.nbytes + wanted <= self.limit:
                    return
                self._drop(key, wanted, only_free)

    def _drop(self, key: tuple[int, torch.dtype], wanted: int, only_free: bool) -> None:
        blocks = self._blocks.get(key, deque())
        for _ in range(len(blocks)):
            if not blocks or self.nbytes + wanted <= self.limit:
                return
            block = blocks.popleft()
            if block.is_free() or not only_free:
                self.nbytes -= block.nbytes
            else:
                blocks.append(block)
        if not blocks:
            self._blocks.pop(key, None)


def _advise_huge_pages(address: int, nbytes: int) -> None:
    first, end = -(-address // _HUGE_PAGE) * _HUGE_PAGE, (address + nbytes) // _HUGE_PAGE * _HUGE_PAGE
    if end > first and _MADVISE is not None:
        _MADVISE(first, end - first, mmap.MADV_HUGEPAGE)  # advice: failing changes nothing


def _find_madvise() -> Callable[[int, int, int], int] | None:
    try:
        found = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found if hasattr(mmap, "MADV_HUGEPAGE") else None


def _default_limit() -> int:
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 256 << 20
    return min(memory // 16, 2 << 30)


_MADVISE = _find_madvise()
_POOL = BlockPool(_default_limit())

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


def release_blocks() -> None:
    """Return the memory of dead results to the system."""
    _POOL.release()
