"""The schedules of a region's CPU kernels chosen by measurement: which to time, on what memory, and what came of it."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from lamina.base.target import Target
from lamina.ir.loops import storage_bytes
from lamina.ir.plan import Kernel, KernelCall, Plan, Schedule
from lamina.runtime.build import BuildResult
from lamina.runtime.cache import Cache, digest
from lamina.runtime.kernel import KernelUnit, kernel_hash
from lamina.runtime.toolchain import compile_flags, host_processor
from lamina.schedule.cpu_space import candidates, label_of, on_one_thread
from lamina.tuning.choose import guess, measured, remembered, worth_timing
from lamina.tuning.cpu_bench import CpuBench
from lamina.tuning.kernels import axis_lengths, sizes_known, untimeable
from lamina.tuning.measure import Sampler, beside_others
from lamina.tuning.reasons import CANNOT_BE_TIMED, LITTLE_TO_GAIN, SAME_RESULTS, TIME_OVER
from lamina.tuning.values import Candidate, Choice, Measurement, Policy, Task, Tuned

__all__ = ["CpuTuning"]

_VERSION = "3"
_TIE = 1.03
"""By how much another than the best guess must be faster: times differ by a little from process to process."""
_LEAST = 2.0
"""Microseconds that a kernel is expected to take for its schedule to matter beside the call."""
_HELD_UP, _START = 2.0, 100.0
"""Threads take so many times as long as one, beyond the microseconds to start them, only where they wait for a core."""
_SPARE = 4
"""Schedules asked for beyond what is timed: some come to the same code."""
_MOST_MEMORY = 1 << 32
"""Bytes of scratch memory for the buffers of a kernel."""


@dataclass(slots=True)
class _Open:
    """A kernel that is to be timed, and the units of its candidates by label."""

    task: Task
    kernel: Kernel
    call: KernelCall
    units: dict[str, KernelUnit]
    failures: dict[str, str]


class CpuTuning:
    """The tuning of one region: ``plan`` has the schedules chosen so far, ``units`` what must be compiled to go on.

    ``unit`` writes the source of a kernel; ``exact``: results must stay what they are, bit for bit.
    """

    bench: Callable[..., CpuBench] = CpuBench

    def __init__(
        self,
        plan: Plan,
        target: Target,
        cache: Cache,
        policy: Policy,
        unit: Callable[[str, Kernel], KernelUnit],
        exact: bool,
    ) -> None:
        self.plan, self.target, self.cache, self.unit = plan, target, cache, unit
        self.policy = replace(policy, tie=_TIE)
        self.exact = exact
        # Another schedule adds in another order, and which one wins is not the same every time.
        self.always = torch.are_deterministic_algorithms_enabled() and not exact
        self.names = [k.name for k in plan.kernels]
        self.buffers = plan.buffer_map()
        self.choices: dict[str, Choice] = {}
        self.open: list[_Open] = []
        for kernel in plan.kernels:
            self._begin(kernel)

    @property
    def units(self) -> list[KernelUnit]:
        """Every candidate's source."""
        return [unit for o in self.open for unit in o.units.values()]

    @property
    def tuned(self) -> Tuned:
        """The choices so far."""
        return Tuned(tuple(self.choices[name] for name in self.names if name in self.choices))

    def finish(self, built: BuildResult) -> Tuned:
        """Time what is open; ``plan`` has the winners' schedules then."""
        ends = time.perf_counter() + self.policy.seconds
        for o in self.open:
            left = ends - time.perf_counter()
            if left <= 0:
                self._settle(guess(o.task, TIME_OVER(seconds=f"{self.policy.seconds:g}")))
            else:
                self._settle(self._timed(o, built, left))
        self.open = []
        return self.tuned

    def _begin(self, kernel: Kernel) -> None:
        calls = [s for s in self.plan.steps if isinstance(s, KernelCall) and s.kernel == kernel.name]
        if why := self._unfit(kernel, calls):
            self._settle(guess(Task(kernel.name, "", (_candidate(kernel.schedules[0]),)), why))
            return
        nbytes = [sum(storage_bytes(self.buffers[b]).const for b in set(call.buffers)) for call in calls]
        call = calls[nbytes.index(max(nbytes))]
        dtypes = {f"b{k}": dtype for k, dtype in enumerate(kernel.dtypes)}
        nest, lengths = kernel.nests[0], axis_lengths(kernel.nests[0], call)
        ranked = candidates(nest, dtypes, self.target, lengths, self.policy.candidates + _SPARE, self.exact)
        alone = on_one_thread(ranked[0].schedule)
        ranked[1:] = sorted(ranked[1:], key=lambda r: r.schedule != alone)  # never beyond those that are timed
        task = Task(kernel.name, "", tuple(_candidate(r.schedule, r.microseconds) for r in ranked))
        if ranked[0].microseconds < _LEAST:
            why = LITTLE_TO_GAIN(why=f"it is expected to take {ranked[0].microseconds:.1f} us")
            self._settle(guess(task, why))
            return
        opened = self._opened(task, kernel, call)
        if why := worth_timing(opened.task, self.policy):
            self._settle(guess(opened.task, why))
            return
        choice = remembered(opened.task, self.policy, self.cache)
        if choice is None:
            self.open.append(opened)
        else:
            self._settle(choice)

    def _unfit(self, kernel: Kernel, calls: list[KernelCall]) -> str:
        """Why a kernel is left to the model, "" if it may be timed."""
        if not calls:
            return "nothing launches it"
        if self.always:
            return SAME_RESULTS()
        if len(kernel.nests) > 1:
            return "different nests of one launch"
        if not all(sizes_known(call, self.buffers) for call in calls):
            return "sizes change from call to call"
        if sum(storage_bytes(self.buffers[b]).const for b in set(calls[0].buffers)) > _MOST_MEMORY:
            return "its buffers take too much memory to be made twice"
        return untimeable(kernel.nests, calls)

    def _opened(self, task: Task, kernel: Kernel, call: KernelCall) -> _Open:
        """The task of those candidates that come to different code, and their sources."""
        units: dict[str, KernelUnit] = {}
        failures: dict[str, str] = {}
        told: dict[str, Candidate] = {}
        flags, machine = compile_flags(self.target.isa), platform.machine()
        for candidate in task.candidates:
            try:
                unit = self.unit(f"{kernel.name}#{len(units)}", replace(kernel, schedules=(candidate.value,)))
            except Exception as error:
                failures[candidate.label] = f"{type(error).__name__}: {error}"[:200]
                continue
            text = kernel_hash(unit, flags, machine)
            if text not in told and len(units) < self.policy.candidates:
                told[text], units[candidate.label] = candidate, unit
        sizes = [e.const.bit_length() for e in call.sizes]
        about = (host_processor(), repr(self.target), repr(sizes), repr(self._other(call) > 0))
        key = digest("tune cpu", _VERSION, *about, *told)
        distinct = tuple(c for c in task.candidates if c in told.values())
        return _Open(replace(task, key=key, candidates=distinct), kernel, call, units, failures)

    def _other(self, call: KernelCall) -> int:
        """Bytes that the rest of the region takes from the caches between two runs of a kernel."""
        own = set(call.buffers)
        rest = [storage_bytes(b) for name, b in self.buffers.items() if name not in own]
        total = sum(nbytes.const for nbytes in rest if nbytes.is_int)
        return 0 if total < self.target.l2_bytes else min(total, 2 * self.target.llc_bytes)

    def _timed(self, o: _Open, built: BuildResult, seconds: float) -> Choice:
        failures = dict(o.failures)
        kernels: dict[str, Callable[..., int]] = {}
        for label, unit in o.units.items():
            error = built.errors.get(unit.name)
            if error is None:
                kernels[label] = built.kernels[unit.name]
            else:
                failures[label] = str(error)[:200]

        def samplers() -> Mapping[str, Sampler]:
            bench = self.bench(o.call, o.kernel.nests, self.buffers, self._other(o.call))
            return {label: bench.sampler(kernel) for label, kernel in kernels.items()}

        alone = label_of(on_one_thread(o.task.candidates[0].value))

        def timing(
            samplers: Mapping[str, Sampler], bound: float | None, seconds: float, clock: Callable[[], float]
        ) -> tuple[Measurement, ...]:
            found = beside_others(samplers, bound, seconds, clock)
            times = {m.label: m.microseconds for m in found if m.microseconds is not None}
            shared = times.get(o.task.candidates[0].label)
            if shared is not None and alone in times and shared > _HELD_UP * times[alone] + _START:
                raise RuntimeError("other work on the processor holds up the threads that share its loop")
            return found

        try:
            return measured(o.task, self.policy, self.cache, samplers, failures, seconds, timing=timing)
        except (RuntimeError, MemoryError) as error:
            return guess(o.task, CANNOT_BE_TIMED(why=f"it cannot be timed: {error}"[:160]))

    def _settle(self, choice: Choice) -> None:
        """Give the kernel the winner's schedule."""
        name = choice.task.subject
        self.choices[name] = choice
        if choice.winner is not choice.task.candidates[0]:
            kernels = tuple(
                replace(k, schedules=(choice.winner.value,)) if k.name == name else k for k in self.plan.kernels
            )
            self.plan = replace(self.plan, kernels=kernels)


def _candidate(schedule: object, predicted: float | None = None) -> Candidate:
    assert isinstance(schedule, Schedule)
    return Candidate(label_of(schedule), schedule, predicted)
