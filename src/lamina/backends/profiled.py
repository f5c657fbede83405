"""Host programs for the CPU whose launches are events of ``torch.profiler``, with kernels and the user's lines.

GPU kernels need none: the profiler sees them by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.fx import GraphModule
from torch.profiler import record_function

from lamina.backends.device import Boxed
from lamina.base.torch_private import boxed
from lamina.ir.access import origins, provenance
from lamina.ir.plan import KernelCall, Plan
from lamina.runtime.host import load_program
from lamina.runtime.kernel import Kernel
from lamina.runtime.kernel_times import timed

__all__ = ["launch_names", "profiled_program", "timed_program", "watching_plans"]

_TIMED_CALLS = 20
"""How many calls of a region have the times of their launches noted, where somebody asked for them."""

Watcher = Callable[[Plan, GraphModule], None]
_watchers: list[Watcher] = []
"""Who is told of regions that a profiler sees: as many as there are ``watching_plans``."""


@contextmanager
def watching_plans(watcher: Watcher) -> Iterator[None]:
    """Inside, ``watcher`` is told of each region that a profiler begins to see: its plan and its graph."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def launch_names(plan: Plan) -> list[tuple[KernelCall, str]]:
    """The plan's launches in order, and what each is called in a trace: "lamina::KERNEL file.py:line operations"."""
    sources = {source.node: source for source in plan.sources}
    launches = [step for step in plan.steps if isinstance(step, KernelCall)]
    return [(step, f"lamina::{step.kernel} {provenance(origins(step), sources)}".rstrip()) for step in launches]


def profiled_program(plan: Plan, gm: GraphModule, text: str, kernels: Mapping[str, Kernel]) -> Boxed:
    """The host program of ``plan``, of that ``text``, with an event for each launch and one for all of it."""
    names: dict[str, list[str]] = {}
    for step, name in launch_names(plan):
        names.setdefault(step.kernel, []).append(name)
    launches = {name: _Launches(kernel, names[name]) for name, kernel in kernels.items() if name in names}
    program = load_program(text, "call", {"kernels": launches})

    def call(args: list[Any]) -> Any:
        for launch in launches.values():
            launch.at = 0
        for watcher in _watchers:
            watcher(plan, gm)
        with record_function(f"lamina region {plan.name}"):
            return program(args)

    return boxed(call)


def timed_program(text: str, kernels: Mapping[str, Kernel], times: dict[str, list[float]]) -> Boxed:
    """The host program of that ``text``. ``times`` gets, for each kernel, the seconds of its launches in a few calls.

    The first call does not count: it finds nothing in the caches.
    """
    program = load_program(text, "call", {"kernels": kernels})
    watched: Boxed | None = None
    calls = 0

    def call(args: list[Any]) -> Any:
        nonlocal watched, calls
        calls += 1
        if calls == 1 or calls > 1 + _TIMED_CALLS:
            watched = None  # it may hold memory of its own
            return program(args)
        timing = watched
        if timing is None:
            try:
                timing = watched = load_program(text, "call", {"kernels": timed(kernels, times)})
            except Exception:  # nothing that is only noted may harm a call
                timing = watched = program
        return timing(args)

    return boxed(call)


class _Launches:
    """A kernel in the place of which events are left; ``at`` is the next of its launches in a call."""

    __slots__ = ("at", "kernel", "names", "pack")

    def __init__(self, kernel: Kernel, names: list[str]) -> None:
        self.kernel, self.names, self.pack, self.at = kernel, names, kernel.pack, 0

    def launch(self, packed: bytes) -> int:
        """Run the kernel within an event."""
        name = self.names[self.at % len(self.names)]
        self.at += 1
        with record_function(name):
            return self.kernel.launch(packed)
