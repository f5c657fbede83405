"""One CPU kernel timed: scratch memory for its buffers, results compared with those of the first schedule."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch

from lamina.ir.access import reads, writes
from lamina.ir.loops import Buffer, Nest
from lamina.ir.plan import KernelCall
from lamina.tuning.kernels import memory
from lamina.tuning.measure import Sampler

__all__ = ["CpuBench"]

_LEAST = 2e-4
"""Seconds that a sample takes at least: short kernels run several times in one."""
_MOST_RUNS = 200
"""Runs of a kernel in one sample at most."""
_CLOSE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""Differences, against the largest value, that another order of additions explains in sums of random numbers."""


class CpuBench:
    """Scratch tensors for the buffers of one launch, and ``other`` bytes that are written before each sample.

    Those stand for the rest of the region, which takes the caches meanwhile. Nothing of the user's is touched. What a
    kernel reads and writes is put back before each sample.
    """

    def __init__(self, call: KernelCall, nests: Sequence[Nest], buffers: Mapping[str, Buffer], other: int) -> None:
        with torch.no_grad():
            self.tensors = memory(call, nests, buffers, torch.Generator("cpu").manual_seed(0))
            self.other = torch.zeros(other // 4, dtype=torch.int32, device="cpu")
        self.addresses = [self.tensors[name].data_ptr() for name in call.buffers]
        self.sizes = [size.const for size in call.sizes]
        written = {call.buffers[int(b[1:])] for nest in nests for b in writes(nest)}
        read = {call.buffers[int(b[1:])] for nest in nests for b in reads(nest)}
        self.written = sorted(written)
        self.before = {name: self.tensors[name].clone() for name in sorted(written)}
        self.changed = sorted(written & read)
        self.results: dict[str, torch.Tensor] = {}

    def sampler(self, kernel: Callable[..., int]) -> Sampler:
        """Runs ``kernel`` on the tensors; first twice more, to see whether its results are right and how long it takes.

        Raises ``ArithmeticError`` where they are others than those of the kernel that came first.
        """
        runs = 0

        def once() -> None:
            code = kernel(*self.addresses, *self.sizes)
            if code:
                raise RuntimeError(f"check {code} of made-up values failed")

        def run(samples: int) -> list[float]:
            nonlocal runs
            with torch.no_grad():
                if not runs:
                    self._compare(once)
                    start = time.perf_counter()
                    once()
                    spent = max(time.perf_counter() - start, 1e-7)
                    runs = 1 if self.other.numel() else max(1, min(_MOST_RUNS, round(_LEAST / spent)))
                return [self._sample(once, runs) for _ in range(samples)]

        return run

    def _sample(self, once: Callable[[], None], runs: int) -> float:
        for name in self.changed:
            self.tensors[name].copy_(self.before[name])
        if self.other.numel():
            self.other.add_(1)
        start = time.perf_counter()
        for _ in range(runs):
            once()
        return (time.perf_counter() - start) * 1e6 / runs

    def _compare(self, once: Callable[[], None]) -> None:
        for name in self.written:
            self.tensors[name].copy_(self.before[name])
        once()
        if not self.results:
            self.results = {name: self.tensors[name].clone() for name in self.written}
            return
        for name in self.written:
            if not _alike(self.tensors[name], self.results[name]):
                raise ArithmeticError(f"{name} is not what the first schedule gives")


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.numel() == 0:
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    close = _CLOSE.get(a.dtype, 0.1)
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    largest = b.abs()[b.abs().isfinite()]
    scale = float(largest.max()) if largest.numel() else 0.0
    return torch.allclose(a, b, rtol=close, atol=close * scale, equal_nan=True)
