"""The CPU backend: plans, C++ kernels built in the background, and the host program that runs them."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
from torch.fx import GraphModule

from lamina.backends.first_step import Loaded
from lamina.backends.regions import (
    Boxed,
    build_threads,
    chosen_compiler,
    instead,
    loaded_later,
    open_cache,
    progress_printer,
    warn_once,
)
from lamina.base.decision import Decision
from lamina.codegen.cpp.emit import emit
from lamina.codegen.cpp.prelude import prelude
from lamina.codegen.cpp.sharing import Shared, shared_kernels
from lamina.codegen.host import HostKernel, HostProgram, emit_host
from lamina.ir.plan import KernelCall, Plan
from lamina.ir.plan_verify import verify_plan
from lamina.options import Options
from lamina.record import Record, Stage
from lamina.runtime.build import BuildResult, build_kernels
from lamina.runtime.compilation import Limit, Running
from lamina.runtime.host import load_program
from lamina.runtime.kernel import KernelFunction, KernelUnit
from lamina.runtime.locks import Patience
from lamina.runtime.pool import Later
from lamina.runtime.toolchain import host_isa
from lamina.schedule.errors import repeatable
from lamina.schedule.fuse import Fused
from lamina.schedule.plan import make_plan
from lamina.schedule.target import Target

__all__ = ["CpuBackend"]


class CpuBackend:
    """Compiles fused programs for this machine's CPU. One object serves one set of options."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.isa = host_isa() if options.simd == "auto" else options.simd
        self.target = Target.of(self.isa, torch.get_num_threads())
        self.cache = open_cache(options)

    def __call__(self, fused: Fused, record: Record, gm: GraphModule) -> Boxed:
        """Plan and generate now, build in the background, load at the first call."""
        region = fused.program.name
        plan: Plan = record.step(region, "plan", make_plan, fused, self.target)
        if self.options.verify is True:
            record.step(region, "verify", verify_plan, plan)
        host: HostProgram = record.step(region, "host", emit_host, plan)
        units = record.step(region, "codegen", self.units, plan, host)
        if sharing := _sharing(units):
            record.stages.append(Stage(region, "codegen", None, 0.0, sharing))
        building = Later(build_threads, lambda running: self.build(region, units, running))
        if self.options.mode != "default":
            why = f"mode {self.options.mode!r} is about GPUs, and this runs on the CPU"
            record.stages.append(Stage(region, "mode", None, 0.0, (Decision("mode", (region,), False, why),)))
        strict = self.options.strict
        if self.options.verify == "first":
            sources = {unit.name: unit.source for unit in units}
            noted = Loaded(plan, lambda *step: _launch(building, *step), sources, ".cpp")
            record.stages.append(Stage(region, "steps", noted, 0.0))
        load = functools.partial(_load, region, host, building, record, gm, strict)
        return loaded_later(region, load, record, gm, strict, _is_repeatable(plan))

    def units(self, plan: Plan, host: HostProgram) -> list[KernelUnit]:
        """The source of each distinct kernel of a plan; those that differ only in sizes have one source."""
        launched = {k.name: k for k in host.kernels}
        shared = shared_kernels({kernel.name: emit(kernel, self.target) for kernel in plan.kernels})
        return [self.unit(name, of, launched[name]) for name, of in shared.items()]

    def unit(self, name: str, shared: Shared, how: HostKernel) -> KernelUnit:
        """The kernel ``name``, whose text is ``shared``."""
        parameters = "q" * len(shared.sizes) + how.parameters
        function = KernelFunction(shared.function, parameters, how.checked)
        exact = self.options.numerics == "eager"
        # Eager rounds a product before it adds to it.
        flags = ("-ffp-contract=off",) if exact else ()
        return KernelUnit(name, shared.source, (function,), prelude(self.isa, exact), flags, shared.sizes)

    def build(self, region: str, units: list[KernelUnit], running: Running) -> BuildResult:
        """Look the kernels up in the cache and compile what is missing."""
        return build_kernels(
            units,
            compiler=chosen_compiler(self.options.cxx, self.cache, running),
            isa=self.isa,
            cache=self.cache,
            jobs=self.options.jobs,
            limit=Limit(self.options.build_seconds),
            on_progress=progress_printer(region, "files") if self.options.progress else None,
            running=running,
            patience=Patience(lambda what: warn_once(f"lamina waits for a lock of its cache: {what}"), running.check),
        )


def _sharing(units: list[KernelUnit]) -> tuple[Decision, ...]:
    """Which kernels are another's with other sizes."""
    pairs = [(unit, unit.functions[0].name) for unit in units if unit.arguments]
    return tuple(
        Decision("share", (unit.name, of), True, f"it is {of} with sizes {', '.join(map(str, unit.arguments))}")
        for unit, of in pairs
        if unit.name != of
    )


def _is_repeatable(plan: Plan) -> bool:
    """Whether ``plan`` can be run again after an error of any of its steps."""
    steps = (step.nests if isinstance(step, KernelCall) else (step,) for step in plan.steps)
    return repeatable(steps, {b.name: b for b in plan.buffers})


def _launch(
    building: Later[BuildResult], step: KernelCall, buffers: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
) -> None:
    """Run one kernel by itself."""
    addresses = [buffers[name].data_ptr() for name in step.buffers]
    building.result().kernels[step.kernel](*addresses, *(int(size.evaluate(sizes)) for size in step.sizes))


def _load(
    region: str, host: HostProgram, building: Later[BuildResult], record: Record, gm: GraphModule, strict: bool
) -> Boxed:
    try:
        built = building.result()
    except OSError as refusal:  # no folder at all can be written
        return instead(region, str(refusal), gm, strict, record)
    record.stages.append(Stage(region, "build", built, built.seconds))
    if built.errors:
        name, error = next(iter(built.errors.items()))
        return instead(region, f"{len(built.errors)} kernels not built, {name}: {error}", gm, strict, record)
    return load_program(host.text, "call", {"kernels": built.kernels})
