"""The schedules of a region's GPU kernels chosen by measurement: which to time, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from lamina.base.target import Target
from lamina.ir.grouped import grouped
from lamina.ir.plan import GpuSchedule, Kernel, KernelCall, Plan
from lamina.runtime.cache import Cache, digest
from lamina.runtime.cuda_driver import Driver
from lamina.runtime.torch_private import is_capturing
from lamina.runtime.triton_build import TritonBuild, TritonUnit
from lamina.schedule.gpu_last_block import with_last_block
from lamina.schedule.gpu_neighbours import searchable
from lamina.schedule.gpu_space import MOST, candidates
from lamina.schedule.plan_times import waiting_us
from lamina.tuning.choose import guess, measured, remembered, worth_asking, worth_timing
from lamina.tuning.cuda_bench import KernelBench
from lamina.tuning.cuda_search import Build, RegionSearch
from lamina.tuning.cuda_trials import Open, Trials, for_all, joins_partials, triton_unit, whole_launch
from lamina.tuning.kernels import label_of, moved_bytes, sizes_known, unscheduled_us, untimeable
from lamina.tuning.products import Library, ProductChoice
from lamina.tuning.reasons import CANNOT_BE_TIMED, SAME_RESULTS, TIME_OVER
from lamina.tuning.search import schedule_from_json
from lamina.tuning.values import Candidate, Choice, Policy, Task, Tuned

__all__ = ["RegionTuning"]

_VERSION = "2"
_LIBRARY = "library"
"""The candidate that is no schedule of ours."""


class RegionTuning:
    """The tuning of one region: ``plan`` has the schedules chosen so far, ``units`` what must be compiled to go on."""

    bench: Callable[..., KernelBench] = KernelBench

    def __init__(
        self,
        plan: Plan,
        target: Target,
        device: int,
        cache: Cache,
        policy: Policy,
        products: ProductChoice | None = None,
    ) -> None:
        self.target, self.device, self.cache, self.policy = target, device, cache, policy
        self.products = products
        self.names = [k.name for k in plan.kernels]
        self.library: set[str] = set()
        self.buffers = plan.buffer_map()
        self.trials = Trials(target, device, self.buffers, self.bench)
        self.search = RegionSearch(self.trials, policy, cache)
        self.choices: dict[str, Choice] = {}
        self.open: list[Open] = []
        self.plan = plan
        # Another tile adds in another order, and which one wins is not the same every time.
        always = SAME_RESULTS() if torch.are_deterministic_algorithms_enabled() else ""
        for kernel in plan.kernels:
            task, call, why = self._task(kernel)
            asked = products is not None and kernel.name in products.libraries
            why = why or ("" if asked else worth_timing(task, policy))
            if why and not always and (probe := self._probe(task, kernel, call)) is not None:
                task, doubt, why = probe, why, ""
            else:
                doubt, why = "", why or always
            found = None if why else remembered(task, policy, cache, schedule_from_json)
            if found is not None and not found.searched and self.search.is_worth(found, kernel, call):
                task, found = _further(task, found.winner), None
            if why:
                self._settle(guess(task, why))
            elif found is not None:
                self._settle(found)
            else:
                self.open.append(self._opened(task, kernel, call, doubt))
        if not self.open:
            self._replan()

    @property
    def meanwhile(self) -> Plan:
        """The plan to build before anything is timed: with the library's products wherever a clock is to be asked.

        Kernels for products take seconds to compile, and only those that win are worth waiting for.
        """
        if self.products is None:
            return self.plan
        asked = [lib for o in self.open for lib in self.products.libraries.get(o.kernel.name, ())]
        return self._with_libraries(self.library | {lib.product for lib in asked})

    @property
    def units(self) -> list[TritonUnit]:
        """Every candidate's machine code."""
        return [triton_unit(launch) for o in self.open for t in o.trials for launch in t.host.launches]

    @property
    def tuned(self) -> Tuned:
        """The choices so far."""
        return Tuned(tuple(self.choices[name] for name in self.names if name in self.choices))

    def finish(self, built: TritonBuild, driver: Driver, build: Build | None = None) -> Plan:
        """Time what is open and give the plan with the winners' schedules.

        ``build`` compiles further schedules of kernels that take far longer than they should; without it there are
        none.
        """
        ends = time.perf_counter() + self.policy.seconds
        for o in self.open:
            left = ends - time.perf_counter()
            if is_capturing():
                self._settle(guess(o.task, "the stream is recording a CUDA graph"))
            elif left <= 0:
                self._settle(guess(o.task, TIME_OVER(seconds=f"{self.policy.seconds:g}")))
            else:
                choice = self._timed(o, built, driver, left)
                if build is not None and self.search.is_worth(choice, o.kernel, o.call):
                    self.search.add(o, choice)
                elif o.doubt and choice.source == "measured":
                    self._settle(guess(o.task, o.doubt, choice.measurements))
                else:
                    self._settle(choice)
        if build is not None:
            for choice in self.search.run(build, driver):
                self._settle(choice)
        self.open = []
        self._replan()
        return self.plan

    def _probe(self, task: Task, kernel: Kernel, call: KernelCall) -> Task | None:
        """The task of timing just the planned schedule, which tells whether others are worth a search."""
        first = task.candidates[0]
        if not task.key or task.bound is None or task.bound < self.policy.probed or not self.policy.searching:
            return None
        if not isinstance(first.value, GpuSchedule) or not searchable(first.value):
            return None
        return replace(task, key=self._key(kernel, call, (first,)), candidates=(first,))

    def _replan(self) -> None:
        """Give those products to the library that it multiplies faster, and keep the other kernels' schedules.

        All is settled then: the plans that were weighed, and what planning remembers, are let go.
        """
        self.plan = self._with_libraries(self.library)
        self.library, self.products = set(), None

    def _with_libraries(self, products: set[str]) -> Plan:
        """The plan with these products the library's, and the schedules that its other kernels have so far."""
        if self.products is None or not products:
            return self.plan
        kept = {k.name: k for k in self.plan.kernels}
        plan = self.products.replan({name: name not in products for name in self.products.preferred})
        return replace(plan, kernels=tuple(kept.get(k.name, k) for k in plan.kernels))

    def _task(self, kernel: Kernel) -> tuple[Task, KernelCall, str]:
        """The question, the launch that it is asked of, and why it is left to the model, if it is."""
        calls = [s for s in self.plan.steps if isinstance(s, KernelCall) and s.kernel == kernel.name]
        first = Candidate(label_of(kernel.schedules[0]), kernel.schedules[0])
        library = None if self.products is None else self.products.libraries.get(kernel.name)
        unasked = Task(kernel.name, "", (first,))
        if library is not None and self.products is not None and self.products.refused(kernel.name):
            unasked = Task(kernel.name, "", (Candidate(_LIBRARY, library[0]), first))
        same = grouped(kernel.nests)
        if len(kernel.nests) > 1 and same is None and not joins_partials(kernel):
            return unasked, calls[0], "different nests of one launch"
        if not all(sizes_known(c, self.buffers) for c in calls):
            return unasked, calls[0], "sizes change from call to call"
        if any(self.buffers[name].on_cpu for c in calls for name in c.buffers):
            return unasked, calls[0], "part of it is on the CPU"
        if why := untimeable(kernel.nests, calls):
            return unasked, calls[0], why
        dtypes = {f"b{k}": dtype for k, dtype in enumerate(kernel.dtypes)}
        moved = [moved_bytes(kernel.nests, c, dtypes, self.buffers) for c in calls]
        call, bound = calls[moved.index(max(moved))], max(moved) / self.target.copy_gbs / 1e3
        unasked = replace(unasked, bound=bound)
        nest, dtypes, lengths = whole_launch(kernel, call)
        stakes = [unscheduled_us(nest, dtypes, self.target, lengths, bound), waiting_us(kernel, call, self.target)]
        # Weights that are kept as bytes take the library many times as long as ours takes to read them.
        stake = max([*stakes, *(lib.moved / self.target.copy_gbs / 1e3 for lib in library or ())])
        if why := worth_asking(stake, self.policy):
            return replace(unasked, key="" if library else self._key(kernel, call, (first,))), call, why
        most = max(MOST, self.policy.candidates)
        ranked = candidates(nest, dtypes, self.target, lengths, most, len(kernel.nests) == 1)
        own = kernel.schedules[0]
        if isinstance(own, GpuSchedule) and own.approximate:  # the plan knows where what a kernel stores ends up
            ranked = [replace(r, schedule=replace(r.schedule, approximate=True)) for r in ranked]
        if joins_partials(kernel):
            ranked = [r for r in ranked if with_last_block(kernel.nests, r.schedule) is not None]
        named = tuple(Candidate(label_of(r.schedule), r.schedule, r.expected) for r in ranked)
        if library is not None and self.products is not None:
            other = Candidate(_LIBRARY, library[calls.index(call)])
            at = 0 if self.products.refused(kernel.name) else 1
            named = (*named[:at], other, *named[at:])
        return Task(kernel.name, self._key(kernel, call, named), named, bound), call, ""

    def _key(self, kernel: Kernel, call: KernelCall, named: Sequence[Candidate]) -> str:
        """The kernel's structure, the power of two above each of its sizes, the GPU, and the candidates."""
        body = repr([(nest.axes, [replace(e, origin=()) for e in nest.body]) for nest in kernel.nests])
        sizes = [e.const.bit_length() if e.is_int else -1 for e in call.sizes]
        target = (self.target.name, self.target.processors, self.target.architecture, self.target.approximate)
        return digest("tune", _VERSION, body, repr(kernel.dtypes), repr(sizes), repr(target), *(c.label for c in named))

    def _opened(self, task: Task, kernel: Kernel, call: KernelCall, doubt: str = "") -> Open:
        trials, failures = self.trials.made(kernel, call, task.candidates[: self.policy.candidates], 0)
        return Open(task, kernel, call, trials, failures, doubt)

    def _timed(self, o: Open, built: TritonBuild, driver: Driver, seconds: float) -> Choice:
        failures = dict(o.failures)
        programs, facts = self.trials.loaded(o.trials, built, driver, failures)

        try:
            samplers = partial(self.trials.samplers, o.kernel, o.call, programs)
            choice = measured(o.task, self.policy, self.cache, samplers, failures, seconds)
        except RuntimeError as error:  # torch's out-of-memory error is one
            return guess(o.task, CANNOT_BE_TIMED(why=f"it cannot be timed: {error}"[:160]))
        noted = tuple(replace(m, facts=facts.get(m.label, ())) for m in choice.measurements)
        return replace(choice, measurements=noted)

    def _settle(self, choice: Choice) -> None:
        """Give the kernel the winner's schedule."""
        name = choice.task.subject
        self.choices[name] = choice
        if isinstance(choice.winner.value, Library):
            assert self.products is not None
            self.library |= {lib.product for lib in self.products.libraries[name]}
            return
        if choice.winner is choice.task.candidates[0]:
            return
        kernels = tuple(
            replace(k, schedules=for_all(k, choice.winner.value)) if k.name == name else k for k in self.plan.kernels
        )
        self.plan = replace(self.plan, kernels=kernels)


def _further(task: Task, winner: Candidate) -> Task:
    """The task with the winner of a search that had no time to end beside the best guess."""
    first, *others = task.candidates
    return replace(task, candidates=(first, *(c for c in (winner,) if c != first), *(c for c in others if c != winner)))
