"""A line on the terminal for whatever takes longer than two seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

__all__ = ["announced"]

PATIENCE = 2.0
EVERY = 15.0


@contextmanager
def announced(console: Console, what: str, patience: float = PATIENCE, every: float = EVERY) -> Iterator[None]:
    """Print ``what`` if the body is still running after ``patience`` seconds, and again each ``every`` seconds."""
    done = threading.Event()
    start = time.perf_counter()

    def report() -> None:
        wait = patience
        while not done.wait(wait):
            console.print(f"[dim]{what}: {time.perf_counter() - start:.0f} s so far[/dim]")
            wait = every

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join()
