"""Memory that a call takes, limits of a process's memory, and what is free on the machine."""

from __future__ import annotations

import contextlib
import ctypes
import re
import resource
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lamina.base.devices import kind_of

__all__ = ["available_memory", "keep_freed_memory", "limit_memory", "peak_memory"]

_RESET_PEAK = "5"
"""What Linux takes in /proc/self/clear_refs to set the peak to the present size."""
_KEEPS = ((-8, 1), (-3, 32 << 20), (-1, 1 << 30))
"""Parameters of glibc's ``mallopt``: one heap for all threads, blocks of up to 32 MiB (more it does not take) come from
the heap, and a GiB at its end is kept.
"""


def available_memory() -> int | None:
    """Bytes that processes may still take on this machine; None where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s*(\d+) kB", text, re.MULTILINE)
    return int(found.group(1)) << 10 if found else None


def limit_memory(size: int) -> None:
    """Let this process and its children take ``size`` more bytes of host memory; more is an exception in them."""
    taken = _status("VmData")
    if taken is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = taken + size if hard == resource.RLIM_INFINITY else min(taken + size, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def keep_freed_memory() -> None:
    """Have the C library keep memory that is freed, for the whole process. Called before there are threads.

    By default glibc gives the end of the heap back to the system when it is larger than twice the largest block that
    was freed so far, and where the end of the heap is depends on what else the process holds. A call whose blocks are
    of that size then takes new pages each time in one process, and none in the next.
    """
    with contextlib.suppress(OSError, AttributeError):  # other C libraries have no such parameters
        mallopt = ctypes.CDLL(None).mallopt
        for name, value in _KEEPS:
            mallopt(name, value)


def peak_memory(call: Callable[[], Any], held_tensors: Sequence[Tensor], *devices: torch.device) -> float | None:
    """Bytes of ``held_tensors``, the parameters and buffers, and of one warm ``call`` beyond what was held before; on
    GPUs, the sum of what each takes at most, also those of pools that CUDA graphs keep for themselves.
    """
    held = sum({t.data_ptr(): t.numel() * t.element_size() for t in held_tensors}.values())
    gpus = [device for device in devices if kind_of(device).queued]
    if gpus:
        gpu: Any = torch.cuda
        before = 0
        for device in gpus:
            torch.cuda.synchronize(device)
            before += torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
        call()
        for device in gpus:
            torch.cuda.synchronize(device)
        most = sum(torch.cuda.max_memory_allocated(device) for device in gpus)
        return float(held + most - before + _in_pools(gpu.memory_snapshot()))
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what is kept for later calls hides what this one takes
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK, encoding="ascii")
        start = _status("VmRSS")
        call()
        peak = _status("VmHWM")
        if start is not None and peak is not None:
            return float(held + max(0, peak - start))
    return None


def _in_pools(segments: Sequence[Mapping[str, Any]]) -> int:
    """Bytes of the segments that belong to a private pool, which nothing else can use while its graphs are there."""
    return sum(s["total_size"] for s in segments if tuple(s.get("segment_pool_id", (0, 0))) != (0, 0))


def _status(name: str) -> int | None:
    """A size of this process in bytes, as the system tells it."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{name}:\s*(\d+) kB", text, re.MULTILINE)
    return int(found.group(1)) << 10 if found else None
