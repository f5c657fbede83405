"""A time limit for code that runs in this thread, as the first call of a compiled program."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["TookTooLong", "at_most"]


class TookTooLong(BaseException):
    """The limit was reached. No ``Exception``: a compiler goes on after those, with the next thing that it tries."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TookTooLong in the code within when it has run for ``seconds``; no limit where they are infinite.

    For the main thread. C code that does not return to Python is interrupted when it does.
    """
    if math.isinf(seconds):
        yield
        return
    if seconds <= 0:
        raise TookTooLong("was not begun: no time was left")

    def stop(number: int, frame: FrameType | None) -> None:
        raise TookTooLong(f"took more than {seconds:.0f} s")

    before, other = signal.signal(signal.SIGALRM, stop), 0.0
    try:
        other, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        # A timer that ran before goes on with what it had left.
        signal.setitimer(signal.ITIMER_REAL, other)
        signal.signal(signal.SIGALRM, before)
