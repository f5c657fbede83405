"""What this machine's CPU can do at most, measured: bytes of a copy, operations of a matrix product."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["Peaks", "copy_bandwidth", "measured_peaks"]

_COPIED = 1 << 26
"""Bytes of a copy that no cache holds both ends of."""
_SQUARE = 1024
"""Rows and columns of matrices whose product is bound by arithmetic."""
_TRIALS = 5
"""Copies and products of which the fastest counts."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """What this machine's CPU does with torch's threads: bytes a second of a copy, float32 operations of a product."""

    bytes_per_second: float
    flops_per_second: float

    def bound(self, nbytes: int, flops: int) -> float:
        """Seconds that a kernel takes at least which moves so many bytes of memory and computes so much."""
        return max(nbytes / self.bytes_per_second, flops / self.flops_per_second)


def measured_peaks() -> Peaks:
    """The peaks, measured now; it takes a quarter of a second."""
    square = torch.ones(_SQUARE, _SQUARE)
    return Peaks(copy_bandwidth(), 2 * _SQUARE**3 / _fastest(lambda: square @ square))


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a copy that no cache holds."""
    source = torch.ones(_COPIED // 4)
    target = torch.empty_like(source)
    return 2 * _COPIED / _fastest(lambda: target.copy_(source))


def _fastest(run: Callable[[], object]) -> float:
    """Seconds of the fastest of some runs."""
    found = float("inf")
    for _ in range(_TRIALS):
        start = time.perf_counter()
        run()
        found = min(found, time.perf_counter() - start)
    return found
