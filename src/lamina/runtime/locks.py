"""Locks that keep one process or thread at a time at one piece of the cache."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from lamina.runtime.clock import CLOCK, Clock

try:
    import fcntl
except ImportError:  # a platform without flock: threads are still kept apart, processes may repeat work
    fcntl = None  # type: ignore[assignment]

__all__ = ["PATIENCE", "Patience", "Stripe", "stripe_of"]

_THREADS: dict[tuple[str, str], threading.Lock] = {}
"""By folder and stripe: a cache has a fixed number of stripes."""
_SHORTEST, _LONGEST = 0.005, 0.25
"""Seconds between two attempts: they grow from one to the other."""


def stripe_of(key: str) -> str:
    """The lock a key belongs to. 256 stripes bound the number of lock files and of open descriptors."""
    return key[:2]


class Patience:
    """How long locks are waited for: ``tell(message)`` is called after ``quiet`` seconds, ``most`` is the end.

    A process that was stopped keeps its locks, and so does one that hangs; what they protect is only work that would
    be done twice. ``check()`` is called at each attempt, and may raise.
    """

    def __init__(
        self,
        tell: Callable[[str], None] = lambda message: None,
        check: Callable[[], None] = lambda: None,
        quiet: float = 10.0,
        most: float = 60.0,
        clock: Clock = CLOCK,
    ) -> None:
        self.tell, self.check, self.quiet, self.most, self.clock = tell, check, quiet, most, clock


PATIENCE = Patience()
"""That of work that nobody is told of."""


class Stripe:
    """An exclusive lock on one stripe of a cache folder, among threads and among processes.

    ``folder`` None, a folder that cannot be written or a file system without locks leave the lock among
    threads only: two processes may then do the same work twice, which is harmless because entries
    are published by renaming. A process that dies releases its locks.
    """

    __slots__ = ("_file", "_folder", "_held", "_patience", "_stripe", "_threads")

    def __init__(self, folder: Path | None, stripe: str, patience: Patience = PATIENCE) -> None:
        self._folder, self._stripe, self._patience = folder, stripe, patience
        self._threads = _THREADS.setdefault((str(folder), stripe), threading.Lock())
        self._file = -1
        self._held = False

    def acquire(self, *, blocking: bool = True) -> bool:
        """Take the lock; False if it is held elsewhere and ``blocking`` is false, or patience is at its end."""
        if self._attempt() or not blocking:
            return self._held
        patience = self._patience
        start, pause, told = patience.clock.now(), _SHORTEST, False
        while not self._attempt():
            patience.check()
            waited = patience.clock.now() - start
            if waited >= patience.most:
                return False
            if waited >= patience.quiet and not told:
                told = True
                patience.tell(f"waiting for {self.holder()}, which compiles the same kernels, {waited:.0f} s so far")
            patience.clock.sleep(pause)
            pause = min(2 * pause, _LONGEST)
        return True

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._file >= 0:
            _close(self._file)
            self._file = -1
        if self._held:
            self._held = False
            self._threads.release()

    def holder(self) -> str:
        """Who holds the lock, as far as that is known."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            assert self._folder is not None
            descriptor = os.open(self._folder / self._stripe, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                number = int(os.read(descriptor, 20))
            finally:
                os.close(descriptor)
            if number == os.getpid():
                return "another thread"
            state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
            return f"process {number} (stopped)" if state in "Tt" else f"process {number}"
        return "another process"

    def __enter__(self) -> Stripe:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _attempt(self) -> bool:
        if not self._threads.acquire(blocking=False):
            return False
        try:
            self._held = self._lock_file()
        finally:
            if not self._held:
                self._threads.release()
        return self._held

    def _lock_file(self) -> bool:
        if self._folder is None or fcntl is None:
            return True
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            with contextlib.suppress(FileExistsError):
                self._folder.mkdir(mode=0o700)
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                descriptor = os.open(self._stripe, flags, 0o600, dir_fd=folder)
            finally:
                os.close(folder)
        except OSError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        _FILES.add(descriptor)
        with contextlib.suppress(OSError):
            os.pwrite(descriptor, b"%-20d" % os.getpid(), 0)
        return True


_FILES: set[int] = set()
"""Descriptors of locks that are held now."""


def _close(descriptor: int) -> None:
    """Drop a lock. Said in so many words: a child forked meanwhile may have the descriptor too."""
    _FILES.discard(descriptor)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _forget_parents_locks() -> None:
    # A lock held by another thread at the moment of a fork would never be released in the child.
    _THREADS.clear()
    for descriptor in tuple(_FILES):
        with contextlib.suppress(OSError):
            os.close(descriptor)  # without unlocking: that is the parent's to do
    _FILES.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents_locks)
