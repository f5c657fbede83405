"""A line on the terminal for whatever takes longer than two seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

__all__ = ["announced"]

PATIENCE = 2.0
"""Seconds of silence before the first line that says what is going on."""
EVERY = 15.0
"""Seconds between lines that say that something still goes on."""


@contextmanager
def announced(console: Console, what: str, patience: float = PATIENCE, every: float = EVERY) -> Iterator[None]:
    """Print ``what`` if the body is still running after ``patience`` seconds, and again each ``every`` seconds."""
    done = threading.Event()
    start = time.perf_counter()

    def report() -> None:
        wait = patience
        while not done.wait(wait):
            console.print(f"{what}: {time.perf_counter() - start:.0f} s so far", style="dim")
            wait = every

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join()
