"""One GPU launch timed: scratch memory, a cache written over before each run, events on the current stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from lamina.backends.regions import Boxed
from lamina.ir.loops import Buffer, Nest, storage_bytes
from lamina.ir.plan import KernelCall
from lamina.tuning.kernels import memory
from lamina.tuning.measure import Sampler

__all__ = ["KernelBench", "require_memory", "times"]

_MOST_MEMORY = 0.5
"""Share of the free memory that scratch tensors may take."""

_LEAD = 4
"""Flushes queued ahead of the first run, so that the GPU does not wait for a host that is busy compiling."""


class KernelBench:
    """Scratch tensors for the buffers of one launch, and ``flush`` bytes that are written before each run.

    Nothing of the user's is touched: not the tensors, not the state of the random generators, not other streams.
    Raises ``torch.OutOfMemoryError`` where the tensors would take much of the memory that is free.
    """

    def __init__(
        self, call: KernelCall, nests: Sequence[Nest], buffers: Mapping[str, Buffer], device: int, flush: int
    ) -> None:
        require_memory(flush + sum(storage_bytes(buffers[name]).const for name in dict.fromkeys(call.buffers)), device)
        self.device = device
        with torch.no_grad(), torch.cuda.device(device):
            generator = torch.Generator(torch.device("cuda", device)).manual_seed(0)
            self.tensors = list(memory(call, nests, buffers, generator).values())
            self.flush = torch.empty(flush // 4, dtype=torch.int32, device=generator.device)

    def sampler(self, program: Boxed) -> Sampler:
        """Runs ``program`` on the tensors; the first time once more, which is not counted."""
        warm = False

        def run(samples: int) -> list[float]:
            nonlocal warm
            with torch.no_grad(), torch.cuda.device(self.device):
                if not warm:
                    program(list(self.tensors))
                    torch.cuda.current_stream().synchronize()
                    warm = True
                return times(lambda: program(list(self.tensors)), self.flush, samples)

        return run


def require_memory(needs: int, device: int) -> None:
    """Raise ``torch.OutOfMemoryError`` where so many bytes of scratch memory would be much of what is free."""
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if needs > _MOST_MEMORY * free:
        raise torch.OutOfMemoryError(f"{needs >> 20} MiB of scratch memory, {free >> 20} MiB are free")


def times(run: Callable[[], object], flush: torch.Tensor, samples: int) -> list[float]:
    """Microseconds of each of so many runs on the current stream, ``flush`` being written before each."""
    marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
    for _ in range(_LEAD):
        flush.zero_()
    for _ in range(samples):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        run()
        end.record()
        marks.append((start, end))
    torch.cuda.current_stream().synchronize()
    return [1e3 * start.elapsed_time(end) for start, end in marks]
