"""Seconds of a region's launches on a GPU, noted in a few of its calls where a report was asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from lamina.backends.device import Boxed
from lamina.base.torch_private import boxed
from lamina.codegen.host_cuda_launches import CudaLaunch
from lamina.runtime.torch_private import gpu_delay, is_capturing

__all__ = ["timed_calls"]

_TIMED_CALLS = 10
"""How many calls have the times of their launches noted."""
_CYCLES = 60_000
"""Cycles of the GPU for each launch that it is kept busy first: so it never waits for the host in what is timed."""
_MOST_CYCLES = 200_000_000
"""About a tenth of a second."""
_SHORTEST = 1e-7
"""Seconds; the clock of events is no finer."""

Program = Callable[[Mapping[str, Any]], Boxed]
"""Makes a host program of its kernels."""
Mark = tuple[CudaLaunch, Any, Any]
"""A launch with the events before and after it."""


@dataclass(frozen=True, slots=True)
class _Noting:
    """Stands for a kernel in a host program."""

    launch: Callable[..., int]


def timed_calls(
    call: Boxed,
    program: Program,
    launches: Sequence[CudaLaunch],
    kernels: Mapping[str, Any],
    device: int,
    times: dict[str, list[float]],
) -> Boxed:
    """``call``, but that the second and a few more calls run what ``program`` makes of kernels that note their times.

    ``times`` gets the seconds of each kernel of the plan; a second launch that belongs to a kernel counts with it. Such
    calls end when the GPU is done. One that is recorded, or made while another thread makes one, is not timed.
    """
    marks: list[Mark] = []
    made: Boxed | None = None
    calls, guard = 0, threading.Lock()

    def timed(args: list[Any]) -> Any:
        nonlocal calls, made
        calls += 1
        if not 1 < calls <= 1 + _TIMED_CALLS or is_capturing() or not guard.acquire(blocking=False):
            return call(args)
        try:
            if made is None:
                made = program({launch.key: _noting(kernels[launch.key].launch, launch, marks) for launch in launches})
            with torch.cuda.device(device):
                return _measured(made, args, marks, launches, times)
        finally:
            marks.clear()
            if calls > _TIMED_CALLS:
                made = None  # it may hold memory of its own
            guard.release()

    return boxed(timed)


def _noting(run: Callable[..., int], launch: CudaLaunch, marks: list[Mark]) -> _Noting:
    def noted(*arguments: Any) -> int:
        begin, end = _event(), _event()
        begin.record()
        code = run(*arguments)
        end.record()
        marks.append((launch, begin, end))
        return code

    return _Noting(noted)


def _measured(
    program: Boxed, args: list[Any], marks: list[Mark], launches: Sequence[CudaLaunch], times: dict[str, list[float]]
) -> Any:
    """Run the program behind work that keeps the GPU busy until all is queued, and note what its launches took."""
    gpu_delay(min(_MOST_CYCLES, _CYCLES * (1 + len(launches))))
    before, after = _event(), _event()
    before.record()
    after.record()
    results = program(args)
    with suppress(Exception):  # nothing that is only noted may harm a call
        torch.cuda.current_stream().synchronize()
        _note(marks, {one.source.then.name for one in launches if one.source.then}, before.elapsed_time(after), times)
    return results


def _note(marks: Sequence[Mark], seconds_of: set[str], between: float, times: dict[str, list[float]]) -> None:
    """Note the seconds of launches; ``between`` milliseconds pass between two events with nothing in between."""
    for launch, begin, end in marks:
        seconds = max((begin.elapsed_time(end) - between) * 1e-3, _SHORTEST)
        own = times.setdefault(launch.kernel, [])
        if launch.source.name in seconds_of and own:
            own[-1] += seconds
        else:
            own.append(seconds)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
