"""Time as a value that is passed in, so that tests drive it and never wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["CLOCK", "Clock"]


@dataclass(frozen=True, slots=True)
class Clock:
    """``now()`` in seconds from an arbitrary point, never going back; ``sleep(seconds)``."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


CLOCK = Clock()
"""The machine's clock."""
