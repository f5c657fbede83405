"""A program run under ``torch.profiler``: each kernel's time, bytes, operations, and shares of the peaks."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from torch.fx import GraphModule
from torch.profiler import ProfilerActivity, profile

from lamina.backends.profiled import launch_names, watching_plans
from lamina.ir.plan import Plan
from lamina.ir.work import Sizes, bytes_of, flops_of
from lamina.peaks import Peaks, measured_peaks

__all__ = ["KernelTime", "Profile", "profiled"]

_WIDTH = 160
"""Characters of a line of a table that no terminal shows."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One launch of a region, over all calls: ``median`` and ``total`` in seconds, ``nbytes`` and ``flops`` of one.

    ``place`` are the user's lines with the operations. ``bandwidth_share`` and ``flops_share`` are of the peaks.
    """

    kernel: str
    region: str
    place: str
    calls: int
    median: float
    total: float
    nbytes: int
    flops: int
    bandwidth_share: float
    flops_share: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The kernels that ran, the longest first; ``seconds`` is the whole run, ``regions`` the time in regions."""

    kernels: tuple[KernelTime, ...]
    seconds: float
    regions: float
    peaks: Peaks

    def __str__(self) -> str:
        out = Console(file=io.StringIO(), width=_WIDTH, highlight=False)
        out.print(self.table())
        text: str = out.file.getvalue()  # type: ignore[attr-defined]
        inside = sum(k.total for k in self.kernels)
        lines = [line.rstrip() for line in text.splitlines()]
        lines.append(
            f"{self.seconds:.3f} s in all, {self.regions:.3f} s in compiled regions, {inside:.3f} s in their kernels; "
            f"peaks: {self.peaks.bytes_per_second / 1e9:.1f} GB/s, {self.peaks.flops_per_second / 1e9:.0f} GFLOP/s"
        )
        return "\n".join(lines)

    def table(self) -> Table:
        """A row for each kernel."""
        table = Table(title="kernels", title_justify="left")
        for column in ("kernel", "lines", "calls", "median us", "total ms", "MB", "of bandwidth", "of arithmetic"):
            table.add_column(column, overflow="fold", justify="left" if column in ("kernel", "lines") else "right")
        for k in self.kernels:
            shares = (f"{100 * k.bandwidth_share:.0f} %", f"{100 * k.flops_share:.1f} %")
            times = (f"{k.median * 1e6:.1f}", f"{k.total * 1e3:.2f}")
            table.add_row(k.kernel, k.place, str(k.calls), *times, f"{k.nbytes / 1e6:.2f}", *shares)
        return table

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def profiled(run: Callable[[], object]) -> Profile:
    """Run a program, and tell what its kernels for CPUs took. Compiling is part of the run, not of kernels' times."""
    plans: dict[int, tuple[Plan, GraphModule]] = {}

    def note(plan: Plan, gm: GraphModule) -> None:
        plans[id(plan)] = (plan, gm)

    with watching_plans(note), profile(activities=[ProfilerActivity.CPU]) as seen:
        seconds = _seconds(run)
    durations: dict[str, list[float]] = {}
    for event in seen.events():
        if event.name.startswith("lamina"):
            durations.setdefault(event.name, []).append(event.cpu_time_total * 1e-6)
    peaks = measured_peaks()
    kernels = {k.kernel + k.place: k for plan, gm in plans.values() for k in _of_plan(plan, gm, durations, peaks)}
    inside = sum(sum(times) for name, times in durations.items() if name.startswith("lamina region"))
    return Profile(tuple(sorted(kernels.values(), key=lambda k: -k.total)), seconds, inside, peaks)


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
