"""A program run under ``torch.profiler``: each kernel's time, bytes, operations, and shares of the peaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any

import torch
from torch.fx import GraphModule
from torch.profiler import ProfilerActivity, profile

from lamina.backends.profiled import launch_names, watching_plans
from lamina.ir.plan import Plan
from lamina.ir.work import Sizes, bytes_of, flops_of
from lamina.peaks import Peaks, measured_peaks
from lamina.profiling.gpu import GpuTimes, gpu_times
from lamina.profiling.values import KernelTime, Profile
from lamina.record import Record, held_records, records
from lamina.stats import planned_graphs

__all__ = ["profiled"]


def profiled(run: Callable[[], object]) -> Profile:
    """Run a program, and tell what its kernels took. Compiling is part of the run, not of kernels' times."""
    plans: dict[int, tuple[Plan, GraphModule]] = {}

    def note(plan: Plan, gm: GraphModule) -> None:
        plans[id(plan)] = (plan, gm)

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with held_records() as held, watching_plans(note), profile(activities=activities) as seen:
        seconds = _seconds(run)
    durations: dict[str, list[float]] = {}
    events = seen.events()
    for event in events:
        if event.name.startswith("lamina"):
            durations.setdefault(event.name, []).append(event.cpu_time_total * 1e-6)
    peaks = measured_peaks()
    kernels = {k.kernel + k.place: k for plan, gm in plans.values() for k in _of_plan(plan, gm, durations, peaks)}
    inside = sum(sum(times) for name, times in durations.items() if name.startswith("lamina region"))
    gpu, gpu_peaks = _on_gpu(events, [*held, *records()])
    rows = sorted([*kernels.values(), *gpu.kernels], key=lambda k: -k.total)
    return Profile(tuple(rows), seconds, inside, peaks, gpu_peaks, gpu.others)


def _on_gpu(events: Iterable[Any], held: Iterable[Record]) -> tuple[GpuTimes, Peaks | None]:
    """What the kernels of a GPU took, and its peaks where there is one."""
    if not torch.cuda.is_available():
        return GpuTimes((), 0.0), None
    peaks = measured_peaks("cuda")
    return gpu_times(events, _gpu_plans(held), peaks), peaks


def _gpu_plans(held: Iterable[Record]) -> Iterator[tuple[Plan, GraphModule | None]]:
    """The plans of records that launch kernels on a GPU, each once."""
    seen: set[int] = set()
    for record in held:
        for plan, gm in planned_graphs(record):
            if id(plan) not in seen and any(buffer.on_gpu for buffer in plan.buffers):
                seen.add(id(plan))
                yield plan, gm


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _of_plan(plan: Plan, gm: GraphModule, durations: dict[str, list[float]], peaks: Peaks) -> list[KernelTime]:
    sizes, buffers, found = Sizes(plan, gm), plan.buffer_map(), []
    for step, name in launch_names(plan):
        times = durations.get(name)
        if not times:
            continue
        nbytes, flops, middle = sum(bytes_of(step, buffers, sizes)), flops_of(step, sizes), median(times)
        place = name.partition(" ")[2]
        shares = (nbytes / middle / peaks.bytes_per_second, flops / middle / peaks.flops_per_second)
        found.append(KernelTime(step.kernel, plan.name, place, len(times), middle, sum(times), nbytes, flops, *shares))
    return found
