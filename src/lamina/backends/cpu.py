"""The CPU backend: plans, C++ kernels built in the background, and the host program that runs them."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.backends import reasons
from lamina.backends.device import LoadedPlan
from lamina.backends.kept_kernels import kept_kernels
from lamina.backends.profiled import profiled_program, timed_program
from lamina.backends.regions import (
    Boxed,
    build_threads,
    chosen_compiler,
    donated_inputs,
    instead,
    loaded_later,
    open_cache,
    progress_printer,
    warn_once,
)
from lamina.base.decision import Decision
from lamina.base.machine_target import target_of
from lamina.base.plurals import counted
from lamina.base.recipes import made_of
from lamina.base.recovery import recover
from lamina.base.together import together
from lamina.codegen.cpp.emit import emit
from lamina.codegen.cpp.prelude import prelude
from lamina.codegen.cpp.sharing import Shared, shared_kernels, shown_numbers
from lamina.codegen.host import emit_host
from lamina.codegen.host_program import HostKernel, HostProgram
from lamina.codegen.origins import cpp_with_origins
from lamina.ir.plan import Kernel, KernelCall, Plan
from lamina.ir.plan_verify import verify_plan
from lamina.options import Options
from lamina.record import Record
from lamina.runtime.build import BuildResult, build_kernels, build_together
from lamina.runtime.compilation import Limit, Running
from lamina.runtime.host import load_program
from lamina.runtime.kernel import KernelFunction, KernelUnit
from lamina.runtime.locks import Patience
from lamina.runtime.outputs import keep_at_most
from lamina.runtime.pool import Batch, Joined, Later
from lamina.runtime.toolchain import host_isa
from lamina.schedule.errors import repeatable
from lamina.schedule.fuse import Fused
from lamina.schedule.plan import make_plan
from lamina.tuning.cpu import CpuTuning
from lamina.tuning.reasons import NOT_BUILT
from lamina.tuning.values import policy_of

__all__ = ["CpuBackend"]


@dataclass(frozen=True, slots=True)
class CpuSources:
    """The texts of a region: its host program and, as units to build, its kernels, with how they are to be tuned."""

    plan: Plan
    host: HostProgram
    units: list[KernelUnit]
    tuning: CpuTuning | None


class CpuBackend:
    """The stages from a fused program to a callable for this machine's CPU. One object serves one set of options."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.isa = host_isa() if options.simd == "auto" else options.simd
        self.target = target_of(torch.device("cpu"), isa=self.isa)
        self.cache = open_cache(options)
        keep_at_most(options.kept_memory << 20)

    def plan(self, fused: Fused, gm: GraphModule, record: Record) -> Plan:
        """The fused program as kernels with their schedules."""
        del gm
        region = fused.program.name
        plan: Plan = record.step(region, "plan", make_plan, fused, self.target)
        if self.options.verify is True:
            record.step(region, "verify", verify_plan, plan)
        return plan

    def codegen(self, plan: Plan, gm: GraphModule, record: Record) -> CpuSources:
        """The host program and the kernels' texts, those of candidates for tuning beside them."""
        region = plan.name
        host: HostProgram = record.step(region, "host", emit_host, plan, donated_inputs(plan, gm))
        tuning = self.tuning(plan, host, record)
        plan = plan if tuning is None else tuning.plan
        units = record.step(region, "codegen", self.units, plan, host)
        if sharing := _sharing(units):
            record.note(region, "codegen", *sharing)
        return CpuSources(plan, host, units, tuning)

    def build(self, sources: CpuSources, gm: GraphModule, record: Record) -> CpuKernels:
        """The kernels, which threads in the background begin to build."""
        kernels = CpuKernels(self, sources, gm, record)
        if self.options.mode == "reduce-overhead":
            reason = reasons.MODE_OF_GPUS(mode=repr(self.options.mode))
            record.note(sources.plan.name, "mode", Decision("mode", (sources.plan.name,), False, reason))
        return kernels

    def load(self, kernels: CpuKernels, gm: GraphModule, record: Record) -> Boxed:
        """The host program with its kernels, which the first call waits for and loads."""
        plan = kernels.plan
        repeatable, strict = _is_repeatable(plan), self.options.strict
        run = loaded_later(plan.name, kernels.program, record, gm, strict, repeatable, kernels.profiled)
        return made_of(run, "kernels", kernels=kernels, graph=gm, retryable=repeatable)

    def plans(self, plan: Plan) -> tuple[Plan, ...]:
        """The plan."""
        return (plan,)

    def steps(self, kernels: CpuKernels) -> LoadedPlan:
        """What runs the kernels one by one."""
        return kernels.steps()

    def tuning(self, plan: Plan, host: HostProgram, record: Record) -> CpuTuning | None:
        """The tuning of a region's kernels, in the modes that ask for it."""
        if not self.options.mode.startswith("max-autotune"):
            return None
        launched = {k.name: k for k in host.kernels}

        def unit(name: str, kernel: Kernel) -> KernelUnit:
            return self.unit(name, Shared(emit(kernel, self.target), kernel.name), launched[kernel.name])

        try:
            exact = self.options.numerics == "eager"
            tuning = CpuTuning(plan, self.target, self.cache, policy_of(self.options.mode), unit, exact)
        except Exception as error:
            self.untuned(error, plan.name, record)
            return None
        if not tuning.open:
            record.keep(plan.name, "tune", tuning.tuned)
        return tuning

    def untuned(self, error: Exception, region: str, record: Record) -> None:
        """Go on with the schedules that were planned, which strict mode does not allow."""
        recover(
            error,
            doing="timing schedules",
            region=region,
            instead="it uses those that were planned, which it has not timed",
            strict=self.options.strict,
            note=record.noting(region, "tune"),
            kind="tune",
        )

    def units(self, plan: Plan, host: HostProgram) -> list[KernelUnit]:
        """The source of each distinct kernel of a plan; those that differ only in sizes have one source."""
        launched = {k.name: k for k in host.kernels}
        texts = {kernel.name: emit(kernel, self.target) for kernel in plan.kernels}
        shared = shared_kernels(cpp_with_origins(texts, plan))
        return [self.unit(name, of, launched[name]) for name, of in shared.items()]

    def unit(self, name: str, shared: Shared, how: HostKernel) -> KernelUnit:
        """The kernel ``name``, whose text is ``shared``."""
        parameters = "q" * len(shared.sizes) + how.parameters
        function = KernelFunction(shared.function, parameters, how.checked)
        exact = self.options.numerics == "eager"
        # Eager rounds a product before it adds to it.
        flags = ("-ffp-contract=off",) if exact else ()
        return KernelUnit(name, shared.source, (function,), prelude(self.isa, exact), flags, shared.sizes)

    def built(self, region: str, units: list[KernelUnit], running: Running) -> BuildResult:
        """Look the kernels up in the cache and compile what is missing."""
        return build_kernels(units, **self._how(region, running))

    def built_together(self, region: str, groups: list[list[KernelUnit]], running: Running) -> list[BuildResult]:
        """The same of the kernels of several regions, as one batch."""
        return build_together(groups, **self._how(region, running))

    def _how(self, region: str, running: Running) -> dict[str, Any]:
        return {
            "compiler": chosen_compiler(self.options.cxx, self.cache, running),
            "isa": self.isa,
            "cache": self.cache,
            "jobs": self.options.jobs,
            "limit": Limit(self.options.build_seconds),
            "on_progress": progress_printer(region, "files") if self.options.progress else None,
            "running": running,
            "patience": Patience(_say_waiting, running.check),
        }


def _say_waiting(what: str) -> None:
    warn_once(f"lamina waits for a lock of its cache: {what}")


def _sharing(units: list[KernelUnit]) -> tuple[Decision, ...]:
    """Which kernels are another's with other sizes."""
    shared = [unit for unit in units if unit.arguments]
    pairs = [(unit, unit.functions[0].name, shown_numbers(unit.source, unit.arguments)) for unit in shared]
    return tuple(
        Decision("share", (unit.name, of), True, reasons.OTHER_SIZES(kernel=of, sizes=", ".join(numbers)))
        for unit, of, numbers in pairs
        if unit.name != of
    )


def _is_repeatable(plan: Plan) -> bool:
    """Whether ``plan`` can be run again after an error of any of its steps."""
    steps = (step.nests if isinstance(step, KernelCall) else (step,) for step in plan.steps)
    return repeatable(steps, {b.name: b for b in plan.buffers})


class CpuKernels:
    """The kernels of one region. Where their schedules are to be timed, that happens when they are first wanted."""

    def __init__(self, backend: CpuBackend, sources: CpuSources, gm: GraphModule, record: Record) -> None:
        self.backend, self.gm, self.record = backend, gm, record
        self.plan, self.host, self.units = sources.plan, sources.host, sources.units
        self.trials = [] if sources.tuning is None else sources.tuning.units
        self.tuning = sources.tuning if sources.tuning is not None and sources.tuning.open else None
        self.built: BuildResult | None = None
        self.process, self.lock = os.getpid(), threading.RLock()
        beside = together()
        self.building: Later[BuildResult] | Joined[BuildResult]
        if beside is None:
            self.building = Later(build_threads, self.build)
        else:
            batch = beside.of(_batch)
            beside.at_end(batch.begin)
            self.building = batch.join(self)

    def build(self, running: Running) -> BuildResult:
        """Build the kernels and the candidates of the tuning; in a thread in the background."""
        return _build([self], running)[0]

    def program(self) -> Boxed:
        """The host program with its kernels, waited for; ATen calls where one of them was not built."""
        region, strict = self.plan.name, self.backend.options.strict
        try:
            built = self.result()
        except OSError as refusal:  # no folder at all can be written
            return instead(region, str(refusal), self.gm, strict, self.record)
        if built.errors:
            name, error = next(iter(built.errors.items()))
            why = f"{counted(len(built.errors), 'kernel')} not built, {name}: {error}"
            return instead(region, why, self.gm, strict, self.record)
        times = self.record.launch_times(region)
        if times is not None:
            return timed_program(self.host.text, built.kernels, times)
        return load_program(self.host.text, "call", {"kernels": built.kernels})

    def profiled(self) -> Boxed | None:
        """The host program with an event for each launch; None where kernels were not built."""
        built = self.result()
        return None if built.errors else profiled_program(self.plan, self.gm, self.host.text, built.kernels)

    def result(self) -> BuildResult:
        """The loaded kernels, waited for. Raises ``OSError`` where no folder can be written."""
        if self.built is not None:
            return self.built
        built = self.building.result()  # not under the lock: a child that is forked meanwhile would find it taken
        if self.process != os.getpid():  # as it may, where a thread of its parent's times schedules
            self.process, self.lock = os.getpid(), threading.RLock()
        with self.lock:
            if self.built is None:
                self.record.add(self.plan.name, "build", built.seconds, built)
                self.record.told(self.plan.name, "cache", kept_kernels, self.plan.name, built)
                self.built = built if self.tuning is None else self.tuned(self.tuning, built)
        return self.built

    def tuned(self, tuning: CpuTuning, built: BuildResult) -> BuildResult:
        """The kernels with the schedules that are fastest, or those that were ``built``, with the candidates."""
        region, backend = self.plan.name, self.backend
        errors = {unit.name: built.errors[unit.name] for unit in self.units if unit.name in built.errors}
        built = replace(built, errors=errors)
        if errors:
            self.record.note(region, "tune", Decision("tune", (region,), False, NOT_BUILT()))
            return backend.built(region, self.units, Running())
        try:
            tuned = self.record.step(region, "tune", tuning.finish, built)
            self.record.note(region, "candidates", *tuned.candidates)
            plan = tuning.plan
            units = backend.units(plan, self.host)
            chosen = backend.built(region, units, Running())
        except Exception as error:
            backend.untuned(error, region, self.record)
            return built
        finally:
            self.tuning = None
        self.record.add(region, "build chosen", chosen.seconds, chosen)
        if chosen.errors:
            return built
        self.plan, self.units = plan, units
        if backend.options.verify is True:
            self.record.step(region, "verify", verify_plan, plan)
        return chosen

    def steps(self) -> LoadedPlan:
        """What runs the kernels one by one, for who looks for a wrong one."""
        return LoadedPlan(self.plan, self.launch, {unit.name: unit.source for unit in self.units}, ".cpp")

    def launch(self, step: KernelCall, buffers: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        """Run one kernel by itself."""
        addresses = [buffers[name].data_ptr() for name in step.buffers]
        self.result().kernels[step.kernel](*addresses, *(int(size.evaluate(sizes)) for size in step.sizes))


def _batch() -> Batch[CpuKernels, BuildResult]:
    """The kernels of regions that are compiled together."""
    return Batch(build_threads, _build)


def _build(wanted: list[CpuKernels], running: Running) -> list[BuildResult]:
    """Build the kernels of regions, and the candidates of their tuning; in a thread in the background."""
    first = wanted[0]
    if all(one.backend.options == first.backend.options for one in wanted):
        groups = [[*one.units, *one.trials] for one in wanted]
        return first.backend.built_together(first.plan.name, groups, running)
    return [_build([one], running)[0] for one in wanted]
