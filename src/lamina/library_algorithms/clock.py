"""What choices among the library's algorithms have in common: when none is asked for, and how each is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lamina.base.target import Target
from lamina.library_algorithms.cublas_lt import Refused, loaded
from lamina.runtime.torch_private import is_capturing
from lamina.tuning.cuda_bench import times
from lamina.tuning.measure import Sampler

__all__ = ["flush_bytes", "sampler", "unasked"]

_FLUSH = 4
"""Second-level caches written over before each run."""


def unasked(device: int) -> str:
    """Why no product is to be timed on this GPU, or ""."""
    if torch.are_deterministic_algorithms_enabled():
        return "deterministic algorithms are asked for"
    if _restricted():
        return "how products may be computed is restricted"
    if is_capturing():
        return "the stream is recording a CUDA graph"
    try:
        loaded(device)
    except Refused as refusal:
        return str(refusal)
    return ""


def _restricted() -> bool:
    """Whether the user restricts how the library may add up products, or lets it add in half precision."""
    flags: Any = torch.backends.cuda.matmul
    allowed = (flags.allow_bf16_reduced_precision_reduction, flags.allow_fp16_reduced_precision_reduction)
    return any(allows is not True for allows in allowed) or bool(getattr(flags, "allow_fp16_accumulation", False))


def flush_bytes(target: Target) -> int:
    """Bytes to write over before each run."""
    return _FLUSH * target.l2_bytes


def sampler(device: int, run: Callable[[], object], flush: Tensor, later: float = 0.0) -> Sampler:
    """Times of ``run`` with ``later`` microseconds for what comes after it; the first run is not counted.

    Before each run ``flush`` is written over.
    """
    warm = False

    def sample(samples: int) -> list[float]:
        nonlocal warm
        with torch.no_grad(), torch.cuda.device(device):
            if not warm:
                run()
                warm = True
            return [us + later for us in times(run, flush, samples)]

    return sample
