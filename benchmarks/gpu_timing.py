"""Times of GPU calls, by turns: the GPU's own, with the host's hidden, what a caller waits, and the host's."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.gpu_machine import flush_cache
from lamina.bench import orders

__all__ = ["alternate_events", "alternate_wall", "host_microseconds"]

FEWEST_SAMPLES = 10
FLUSH_US = 50
"""Writing over the cache takes a GPU at least so long."""


def alternate_events(
    calls: Mapping[str, Callable[[], Any]], samples: int, seconds: float, host_us: float
) -> dict[str, float]:
    """Median GPU milliseconds of each callable, in turns whose order is reversed every other round.

    Before every sample the GPU is given work for ``host_us`` (at most 5000), the same for all: time that the host
    needs to queue a call is hidden from each or from none, whatever ran before it. There are fewer than ``samples``
    rounds, but at least ten, where they would take longer than ``seconds``.
    """
    estimate = sum(_warm(call) for call in calls.values())
    lead = 1 + math.ceil(min(host_us, 5000) / FLUSH_US)
    samples = max(min(samples, int(seconds / max(estimate, 1e-9))), min(samples, FEWEST_SAMPLES))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for order in itertools.islice(orders(calls), samples):
        marks = []
        for name in order:
            for _ in range(lead):
                flush_cache()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            calls[name]()
            end.record()
            marks.append((name, start, end))
        torch.cuda.synchronize()
        for name, start, end in marks:
            times[name].append(start.elapsed_time(end))
    return {name: statistics.median(found) for name, found in times.items()}


def alternate_wall(
    calls: Mapping[str, Callable[[], Any]],
    samples: int,
    seconds: float,
    flush: Callable[[], None] = flush_cache,
    synchronize: Callable[[], None] = torch.cuda.synchronize,
) -> dict[str, float]:
    """Median milliseconds that a caller of each callable waits for its results, in turns as for GPU times.

    The host's clock, from an idle GPU whose second-level cache was written over until ``synchronize`` returns: nothing
    hides the host's part. The callables are warm. Rounds end after ``seconds``, but not before there are ten.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    started = time.perf_counter()
    for done, order in enumerate(itertools.islice(orders(calls), samples)):
        if done >= FEWEST_SAMPLES and time.perf_counter() - started > seconds:
            break
        for name in order:
            flush()
            synchronize()
            start = time.perf_counter_ns()
            calls[name]()
            synchronize()
            times[name].append((time.perf_counter_ns() - start) / 1e6)
    return {name: statistics.median(found) for name, found in times.items()}


def _warm(call: Callable[[], Any]) -> float:
    """Seconds of a call, after enough of them that a compiler has settled (on CUDA graphs, say)."""
    torch.cuda.synchronize()
    start, count = time.perf_counter(), 0
    while count < 5 or (count < 25 and time.perf_counter() - start < 0.5):
        call()
        torch.cuda.synchronize()
        count += 1
    return (time.perf_counter() - start) / count


def host_microseconds(call: Callable[[], Any], samples: int = 15) -> float:
    """Median time until a call has queued its work on an idle GPU."""
    times = []
    for _ in range(samples):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start) / 1e3)
    torch.cuda.synchronize()
    return statistics.median(times)
