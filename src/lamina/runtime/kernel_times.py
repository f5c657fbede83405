"""Times of the kernels of a host program that runs alone, beside what a copy of their bytes takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from lamina.peaks import copy_bandwidth
from lamina.runtime.kernel import Kernel

__all__ = ["TimedKernel", "print_times", "timed"]

_RUNS = 5
"""Times that the program runs; the first warms it up and does not count."""


class TimedKernel:
    """A kernel that notes how long each of its launches takes, in seconds."""

    __slots__ = ("kernel", "pack", "times")

    def __init__(self, kernel: Kernel, times: list[float]) -> None:
        self.kernel, self.pack, self.times = kernel, kernel.pack, times

    def launch(self, packed: bytes) -> int:
        """Run the kernel."""
        start = time.perf_counter()
        code = self.kernel.launch(packed)
        self.times.append(time.perf_counter() - start)
        return code


def timed(kernels: Mapping[str, Kernel], times: dict[str, list[float]] | None = None) -> dict[str, TimedKernel]:
    """Kernels by name that note their times, in ``times`` if it is given."""
    kept = {} if times is None else times
    return {name: TimedKernel(kernel, kept.setdefault(name, [])) for name, kernel in kernels.items()}


def print_times(
    kernels: Mapping[str, TimedKernel], nbytes: Sequence[tuple[str, int]], run: Callable[[], object]
) -> None:
    """Run a program several times, and print for each of its launches its time beside that of a copy.

    ``nbytes`` has for each launch, in order, the kernel and the bytes that it reads and writes at least.
    """
    for number in range(_RUNS):
        if number == 1:
            for kernel in kernels.values():
                kernel.times.clear()
        run()
    bandwidth = copy_bandwidth()
    launches = [name for name, _ in nbytes]
    print(f"{'kernel':<48} {'us':>10} {'MB':>10} {'GB/s':>8}  of a copy's {bandwidth / 1e9:.1f} GB/s")
    for at, (name, size) in enumerate(nbytes):
        every, place = launches.count(name), launches[:at].count(name)
        times = kernels[name].times[place::every]
        if not times:  # a branch that the program did not take
            print(f"{name:<48} {'not run':>10} {size / 1e6:>10.3f}")
            continue
        seconds = median(times)
        rate = size / seconds
        print(
            f"{name:<48} {seconds * 1e6:>10.1f} {size / 1e6:>10.3f} {rate / 1e9:>8.2f}  {100 * rate / bandwidth:.0f} %"
        )
