"""Locks that keep one process or thread at a time at one piece of the cache."""

from __future__ import annotations

import os
import threading
from pathlib import Path

try:
    import fcntl
except ImportError:  # a platform without flock: threads are still kept apart, processes may repeat work
    fcntl = None  # type: ignore[assignment]

__all__ = ["Stripe", "stripe_of"]

_THREADS: dict[tuple[str, str], threading.Lock] = {}


def stripe_of(key: str) -> str:
    """The lock a key belongs to. 256 stripes bound the number of lock files and of open descriptors."""
    return key[:2]


class Stripe:
    """An exclusive lock on one stripe of a cache folder, among threads and among processes.

    ``folder`` None, a folder that cannot be written or a file system without locks leave the lock among
    threads only: two processes may then do the same work twice, which is harmless because entries
    are published by renaming. A process that dies releases its locks.
    """

    __slots__ = ("_file", "_folder", "_stripe", "_threads")

    def __init__(self, folder: Path | None, stripe: str) -> None:
        self._folder, self._stripe = folder, stripe
        self._threads = _THREADS.setdefault((str(folder), stripe), threading.Lock())
        self._file = -1

    def acquire(self, *, blocking: bool = True) -> bool:
        """Take the lock; False if it is held elsewhere and ``blocking`` is false."""
        if not self._threads.acquire(blocking=blocking):
            return False
        try:
            taken = self._lock_file(blocking)
        except BaseException:
            self._threads.release()
            raise
        if not taken:
            self._threads.release()
        return taken

    def release(self) -> None:
        """Give the lock back."""
        if self._file >= 0:
            os.close(self._file)  # closing the only descriptor drops the flock
            self._file = -1
        self._threads.release()

    def __enter__(self) -> Stripe:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _lock_file(self, blocking: bool) -> bool:
        if self._folder is None or fcntl is None:
            return True
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(self._folder / self._stripe, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if blocking else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:  # no locks on this file system
            os.close(descriptor)
            return True
        except BaseException:
            os.close(descriptor)
            raise
        self._file = descriptor
        return True


def _forget_parents_locks() -> None:
    # A lock held by another thread at the moment of a fork would never be released in the child.
    _THREADS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents_locks)
