"""What a generated host program for a GPU imports: memory and streams of torch, checks that are read without waiting.

Memory comes from torch's caching allocator, in stream order, so that what a region has freed is torch's to use.
"""

from __future__ import annotations

import builtins
import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lamina.runtime.cuda_driver import CudaError
from lamina.runtime.torch_private import (
    current_device,
    current_stream,
    empty_strided_cuda,
    exchange_device,
    is_capturing,
    only_owner,
    reinterpret,
)

__all__ = [
    "Flags",
    "current_device",
    "current_stream",
    "elsewhere",
    "empty",
    "enter_context",
    "forget_zeros",
    "launch_failed",
    "lend_zeros",
    "only_owner",
    "references",
    "reinterpret",
    "zeroed",
]

empty = empty_strided_cuda
references = sys.getrefcount


def elsewhere(device: int, call: Callable[[list[Any]], Any], args: list[Any]) -> Any:
    """``call(args)`` with another GPU as the current one."""
    before = exchange_device(device)
    try:
        return call(args)
    finally:
        exchange_device(before)


class _Thread(threading.local):
    """What a thread has done so far."""

    entered = False


_THREAD = _Thread()


def enter_context() -> None:
    """Make the GPU's context current in a thread that has not used it yet, such as one of autograd's.

    Launches and most of torch's operations see to it themselves; cuBLAS warns.
    """
    if not _THREAD.entered:
        torch.cuda.current_stream().query()
        _THREAD.entered = True


def launch_failed(kernel: str, code: int) -> None:
    """Raise what the driver said of a launch."""
    names = {1: "invalid value", 700: "illegal memory access", 701: "out of resources", 719: "launch failure"}
    raise CudaError(f"CUDA error {code} ({names.get(code, 'see cudaError_t')}) at the launch of kernel {kernel}")


class Flags:
    """Numbers of failed checks: one int32 for each launch that checks something, in memory the GPU writes to.

    A kernel that meets a bad index writes its check's number and stops the GPU's work, as eager's device-side assertion
    does. Reading costs 30 ns and waits for nothing, so what a call did wrong is reported by the next one, or
    by torch when the program waits for the GPU.
    """

    def __init__(self, messages: Sequence[Sequence[tuple[str, str]]]) -> None:
        self._messages = messages  # for each launch the name of a built-in exception and its text, check by check
        pinned = torch.cuda.is_available()
        self._memory = torch.zeros(max(1, len(messages)), dtype=torch.int32, device="cpu", pin_memory=pinned)
        self.address = self._memory.data_ptr()
        self.cells = tuple(ctypes.c_int32.from_address(self.address + 4 * k) for k in range(len(messages)))

    def report(self) -> None:
        """Raise the error of the first check that failed in an earlier call, and forget it."""
        for cell, messages in zip(self.cells, self._messages, strict=True):
            number, cell.value = cell.value, 0
            if number:
                error, text = messages[number - 1]
                kind: type[Exception] = getattr(builtins, error)
                raise kind(f"{text} (in an earlier call of this compiled region)")


_ZEROS: dict[tuple[int, int], torch.Tensor] = {}
"""By device and stream: kernels leave the memory zero, and those of one stream run one after another."""
_LENT: dict[tuple[int, int], torch.Tensor] = {}
"""The same of streams that record a graph: what was lent to the recording."""
_CLEARED: dict[tuple[int, int], torch.Tensor] = {}
"""The same: what the replays of a graph clear again."""
_OUTGROWN: list[torch.Tensor] = []
"""Kept, as another thread may be about to launch with an address of theirs. Each is twice as large as the last."""
_GUARD = threading.Lock()
_LEAST_ZEROS = 4096
"""Bytes of a stream's zero memory at least, so that it rarely grows."""
_LENT_ZEROS = 1 << 16
"""Bytes of zero memory that a stream under recording is lent at once."""


def zeroed(device: int, stream: int, nbytes: int) -> int:
    """The address of ``nbytes`` zero bytes for a kernel on this stream, which must leave them zero.

    Replays of a recording may run beside what else its stream does, so a recording has memory of its own: what
    ``lend_zeros`` gave, else memory that is cleared where it is used, by every replay.
    """
    place = device, stream
    if is_capturing():
        found = _LENT.get(place)
        if found is None or found.numel() < nbytes:
            # Held until the next one, so that nothing else of the recording lies there before the kernel has run.
            found = _CLEARED[place] = _zeros(device, nbytes)
        return found.data_ptr()
    found = _ZEROS.get(place)
    if found is None or found.numel() < nbytes:
        with _GUARD:
            _OUTGROWN.extend([] if found is None else [found])
            found = _ZEROS[place] = _zeros(device, max(_LEAST_ZEROS, 2 * nbytes))
    return found.data_ptr()


def lend_zeros(device: int, stream: int) -> torch.Tensor:
    """Zero memory for kernels that are about to be recorded on this stream: it belongs to the recording."""
    found = _LENT[device, stream] = _zeros(device, _LENT_ZEROS)
    return found


def forget_zeros(device: int, stream: int) -> None:
    """End the recording on this stream."""
    _LENT.pop((device, stream), None)


def _zeros(device: int, nbytes: int) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.zeros(nbytes, dtype=torch.uint8, device=torch.device("cuda", device))
