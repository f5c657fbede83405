"""Kernels of a GPU among the events of ``torch.profiler``: which of them are Lamina's, and for which lines they run.

The profiler sees a kernel by the name of its function. Which of its launches an event is of is known by their order
where one region alone launches it; elsewhere a row is about all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from torch.fx import GraphModule

from lamina.backends.profiled import launch_names
from lamina.ir.plan import Plan
from lamina.ir.work import Sizes, bytes_of, flops_of
from lamina.peaks import Peaks
from lamina.profiling.values import KernelTime

__all__ = ["GpuTimes", "gpu_times"]

_SECOND = "_sums"
"""What the name of a kernel's second launch has in it. Other ends are of variants: a number is a tuner's candidate."""
_SECONDS = 1e-6
"""In a microsecond, the profiler's unit."""


@dataclass(frozen=True, slots=True)
class GpuTimes:
    """The rows of Lamina's kernels for GPUs, and the seconds of all others: libraries' kernels, copies, fills."""

    kernels: tuple[KernelTime, ...]
    others: float


@dataclass(frozen=True, slots=True)
class _Launch:
    """One launch of a kernel in a plan."""

    region: str
    place: str
    nbytes: int
    flops: int


@dataclass(slots=True)
class _Seen:
    """A kernel's launches by the plans, and the seconds of those that the profiler saw, in order."""

    launches: list[_Launch] = field(default_factory=list)
    plans: set[int] = field(default_factory=set)
    seconds: list[float] = field(default_factory=list)


def gpu_times(events: Iterable[Any], plans: Iterable[tuple[Plan, GraphModule | None]], peaks: Peaks | None) -> GpuTimes:
    """What the events, in the order in which they began, say of the kernels of plans. CPU events are passed over."""
    known: dict[str, _Seen] = {}
    for plan, gm in plans:
        sizes, buffers = Sizes(plan, gm), plan.buffer_map()
        for step, name in launch_names(plan):
            seen = known.setdefault(step.kernel, _Seen())
            seen.plans.add(id(plan))  # another callable's region may have the same name
            nbytes = sum(bytes_of(step, buffers, sizes))
            seen.launches.append(_Launch(plan.name, name.partition(" ")[2], nbytes, flops_of(step, sizes)))
    others = 0.0
    for event in sorted(filter(_is_work, events), key=lambda event: float(event.time_range.start)):
        seconds = event.time_range.elapsed_us() * _SECONDS
        kernel, variant = _kernel_of(event.name, known)
        if kernel is None:
            others += seconds
        elif _SECOND not in variant or not kernel.seconds:
            kernel.seconds.append(seconds)
        else:
            kernel.seconds[-1] += seconds
    rows = [row for name, seen in known.items() if seen.seconds for row in _rows(name, seen, peaks)]
    return GpuTimes(tuple(rows), others)


def _is_work(event: Any) -> bool:
    """Whether an event is something that a GPU did, and no range that a program named."""
    return event.device_type.name == "CUDA" and not getattr(event, "is_user_annotation", False)


def _kernel_of(event: str, known: Mapping[str, _Seen]) -> tuple[_Seen | None, str]:
    """The kernel whose function an event names, and what follows the kernel's name in it."""
    name = event
    while name:
        if name in known:
            return known[name], event[len(name) :]
        name = name.rpartition("_")[0]
    return None, ""


def _rows(name: str, seen: _Seen, peaks: Peaks | None) -> Iterator[KernelTime]:
    several = len(seen.launches)
    if len(seen.plans) == 1 and len(seen.seconds) % several == 0:
        for number, launch in enumerate(seen.launches):
            yield _row(name, launch, seen.seconds[number::several], peaks)
        return
    regions = ", ".join(dict.fromkeys(launch.region for launch in seen.launches))
    places = "; ".join(dict.fromkeys(launch.place for launch in seen.launches))
    nbytes = sum(launch.nbytes for launch in seen.launches) // several
    flops = sum(launch.flops for launch in seen.launches) // several
    yield _row(name, _Launch(regions, places, nbytes, flops), seen.seconds, peaks)


def _row(name: str, launch: _Launch, seconds: Sequence[float], peaks: Peaks | None) -> KernelTime:
    middle, total, nbytes, flops = median(seconds), sum(seconds), launch.nbytes, launch.flops
    shares = (0.0, 0.0)
    if peaks is not None and middle > 0:
        shares = (nbytes / middle / peaks.bytes_per_second, flops / middle / peaks.flops_per_second)
    return KernelTime(name, launch.region, launch.place, len(seconds), middle, total, nbytes, flops, *shares, "gpu")
