"""What this machine can do at most, measured: bytes of a copy, operations of a matrix product."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lamina.base.devices import kind_of

__all__ = ["Peaks", "copy_bandwidth", "measured_peaks"]

_COPIED = 1 << 26
"""Bytes of a copy that no cache holds both ends of."""
_SQUARE = 1024
"""Rows and columns of matrices whose product is bound by arithmetic."""
_GPU_SCALE = 8
"""How much larger both are on a GPU."""
_TRIALS = 5
"""Copies and products of which the fastest counts."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """What a device does: bytes a second, read and written, of a copy; operations of a product, of float32 on a CPU
    with torch's threads, of bfloat16 on a GPU.
    """

    bytes_per_second: float
    flops_per_second: float

    def bound(self, nbytes: int, flops: int) -> float:
        """Seconds that a kernel takes at least which moves so many bytes of memory and computes so much."""
        return max(nbytes / self.bytes_per_second, flops / self.flops_per_second)


def measured_peaks(device: str = "cpu") -> Peaks:
    """The peaks of a device, "cpu" or "cuda", measured now; it takes a quarter of a second."""
    gpu = not kind_of(device).host
    size = _GPU_SCALE * _SQUARE if gpu else _SQUARE
    square = torch.ones(size, size, device=device, dtype=torch.bfloat16 if gpu else torch.float32)
    return Peaks(copy_bandwidth(device), 2 * size**3 / _fastest(lambda: square @ square, device))


def copy_bandwidth(device: str = "cpu") -> float:
    """Bytes a second, read and written, of a copy that no cache holds."""
    nbytes = _COPIED if kind_of(device).host else _GPU_SCALE * _COPIED
    source = torch.ones(nbytes // 4, device=device)
    target = torch.empty_like(source)
    return 2 * nbytes / _fastest(lambda: target.copy_(source), device)


def _fastest(run: Callable[[], object], device: str) -> float:
    """Seconds of the fastest of some runs; on a GPU after one that does not count."""
    found, queued = float("inf"), kind_of(device).queued
    if queued:
        run()
    for _ in range(_TRIALS):
        if queued:
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if queued:
            torch.cuda.synchronize()
        found = min(found, time.perf_counter() - start)
    return found
