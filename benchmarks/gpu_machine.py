"""What a GPU figure depends on: the card, its driver, and the two rates that bound every kernel, measured."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

__all__ = ["copy_gbs", "flush_cache", "gemm_tflops", "gpu", "milliseconds", "needs_gpu", "one_assembler"]

FLUSH_BYTES = 256 << 20
_scratch: dict[int, torch.Tensor] = {}


def needs_gpu() -> None:
    """End the program with a line where torch sees no GPU."""
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs an NVIDIA GPU, and torch sees none")


def one_assembler() -> None:
    """Have this process, and those it starts from now on, assemble kernels with the ptxas that torch brings, if any.

    Inductor's compiling processes take that one. A process that has asked for the version of Triton's own before finds
    nothing of what they compiled, and max-autotune compiles each candidate for a product again, one after the other.
    """
    ptxas = Path(torch.__file__).parent / "bin" / "ptxas"
    if ptxas.is_file():
        os.environ.setdefault("TRITON_PTXAS_PATH", str(ptxas))


def flush_cache() -> None:
    """Write more than any second-level cache holds, so that the next kernel reads from memory."""
    device = torch.cuda.current_device()
    if device not in _scratch:
        _scratch[device] = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    _scratch[device].zero_()


def milliseconds(call: Callable[[], Any], samples: int = 20) -> float:
    """Median GPU time of a call on a flushed cache."""
    for _ in range(3):
        call()
    times = []
    for _ in range(samples):
        flush_cache()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def copy_gbs(nbytes: int = 4 << 30) -> float:
    """Gigabytes a second that a copy reads and writes together."""
    source = torch.randint(0, 127, (nbytes // 8,), dtype=torch.int64, device="cuda")
    target = torch.empty_like(source)
    return 2 * nbytes / milliseconds(lambda: target.copy_(source)) / 1e6


def gemm_tflops(n: int = 8192) -> float:
    """Rate of a large bf16 matrix product on random numbers."""
    a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    return 2 * n**3 / milliseconds(lambda: a @ b) / 1e9


def gpu() -> dict[str, Any]:
    """The card, its driver and what it reaches."""
    about = torch.cuda.get_device_properties(0)
    return {
        "name": about.name,
        "capability": f"sm_{about.major}{about.minor}",
        "processors": about.multi_processor_count,
        "memory_gib": round(about.total_memory / 2**30, 1),
        "cuda": torch.version.cuda,
        "copy_gbs": round(copy_gbs(), 1),
        "gemm_bf16_tflops": round(gemm_tflops(), 1),
    }
