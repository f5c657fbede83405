"""Candidates for one GPU launch as regions of their own: compiled, loaded and timed on scratch memory.

A candidate's region holds the launch alone, so that everything that it needs (grid, workspaces, zeros, alignment) comes
from the code that the real program uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lamina.backends.regions import Boxed
from lamina.base.target import Target
from lamina.codegen.host_cuda import CudaHost, emit_cuda_host
from lamina.codegen.host_cuda_launches import CudaLaunch
from lamina.codegen.triton.emit import emit
from lamina.ir.grouped import grouped
from lamina.ir.index import as_expr
from lamina.ir.loops import Buffer, Nest
from lamina.ir.plan import GpuSchedule, Kernel, KernelCall, Place, Plan
from lamina.runtime.cuda_driver import CudaKernel, Driver
from lamina.runtime.cuda_host import Flags
from lamina.runtime.host import load_program
from lamina.runtime.triton_build import TritonBuild, TritonUnit
from lamina.runtime.triton_pool import TritonError
from lamina.schedule.gpu_last_block import with_last_block
from lamina.tuning.cuda_bench import KernelBench
from lamina.tuning.kernels import axis_lengths
from lamina.tuning.measure import Sampler
from lamina.tuning.products import Library
from lamina.tuning.values import Candidate, Task

__all__ = ["Open", "Trial", "Trials", "for_all", "joins_partials", "triton_unit", "whole_launch"]

_Facts = Mapping[str, tuple[tuple[str, int], ...]]
"""Registers and spilled registers of a thread, by a candidate's label."""

_FLUSH = 4
"""Second-level caches written over before each run."""


def triton_unit(launch: CudaLaunch) -> TritonUnit:
    """What the Triton compilers are given for a launch."""
    source = launch.source
    return TritonUnit(
        launch.key,
        source.name,
        source.text,
        source.parameters,
        source.types,
        launch.aligned,
        source.warps,
        source.stages,
        source.checks,
        source.scratch,
    )


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate as a region of its own."""

    candidate: Candidate
    host: CudaHost


@dataclass(slots=True)
class Open:
    """A kernel that is to be timed; ``doubt``: why its candidates are not, where it has only the planned one."""

    task: Task
    kernel: Kernel
    call: KernelCall
    trials: list[Trial]
    failures: dict[str, str]
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Trials:
    """Makes candidates for launches of one region, whose ``buffers`` have these names."""

    target: Target
    device: int
    buffers: Mapping[str, Buffer]
    bench: Callable[..., KernelBench]

    def made(
        self, kernel: Kernel, call: KernelCall, candidates: Sequence[Candidate], first: int
    ) -> tuple[list[Trial], dict[str, str]]:
        """Regions of single launches, numbered from ``first`` on, and why there is none of other candidates."""
        trials: list[Trial] = []
        failures: dict[str, str] = {}
        for number, candidate in enumerate(candidates, first):
            try:
                if isinstance(candidate.value, Library):
                    plan = candidate.value.plan(f"{kernel.name}_{number}", tuple(dict.fromkeys(call.buffers)))
                else:
                    schedules = for_all(kernel, candidate.value)
                    alone = replace(kernel, name=f"{kernel.name}_{number}", schedules=schedules)
                    plan = _trial_plan(alone, call, self.buffers)
                sources = {k.name: emit(k, self.target) for k in plan.kernels}
                host = emit_cuda_host(plan, sources, self.device)
            except Exception as error:
                failures[candidate.label] = f"{type(error).__name__}: {error}"[:200]
            else:
                trials.append(Trial(candidate, host))
        return trials, failures

    def loaded(
        self, trials: Sequence[Trial], built: TritonBuild, driver: Driver, failures: dict[str, str]
    ) -> tuple[dict[str, Boxed], _Facts]:
        """What can be run by label, and its registers; ``failures`` takes why others cannot."""
        programs: dict[str, Boxed] = {}
        facts: dict[str, tuple[tuple[str, int], ...]] = {}
        for trial in trials:
            label = trial.candidate.label
            try:
                kernels = _loaded(trial.host, built, driver, self.device)
            except TritonError as error:
                failures[label] = error.what[:200]
                continue
            flags = Flags(trial.host.messages) if trial.host.messages else None
            programs[label] = load_program(trial.host.text, "call", {"kernels": kernels, "failed": flags})
            facts[label] = tuple(
                (name, value)
                for k in kernels.values()
                for name, value in (("registers", k.registers), ("spilled", k.spilled))
            )
        return programs, facts

    def samplers(self, kernel: Kernel, call: KernelCall, programs: Mapping[str, Boxed]) -> dict[str, Sampler]:
        """Runs the programs of candidates for a launch. Raises ``torch.OutOfMemoryError``."""
        flush = _FLUSH * self.target.l2_bytes
        bench = self.bench(call, kernel.nests, self.buffers, self.device, flush)
        return {label: bench.sampler(program) for label, program in programs.items()}


def whole_launch(kernel: Kernel, call: KernelCall) -> tuple[Nest, dict[str, str], dict[str, int]]:
    """The nest that a kernel's schedule is of, its buffers' element types and its axes' lengths in a launch; nests of
    one form count as one along a longer axis.
    """
    nest, dtypes = kernel.nests[0], {f"b{k}": dtype for k, dtype in enumerate(kernel.dtypes)}
    lengths, same = axis_lengths(nest, call), grouped(kernel.nests)
    if len(kernel.nests) > 1 and same is not None:
        nest, dtypes = same.nest, {f"b{k}": dtypes[b] for k, b in enumerate(same.buffers[0])}
        lengths = {axis.name: sum(n or 1 for n in same.lengths) for axis in nest.axes}
    return nest, dtypes, lengths


def joins_partials(kernel: Kernel) -> bool:
    """Whether the kernel's second nest is run by the last programs of the first."""
    return any(isinstance(s, GpuSchedule) and s.last_block for s in kernel.schedules)


def for_all(kernel: Kernel, schedule: GpuSchedule) -> tuple[GpuSchedule, ...]:
    """The schedules of a kernel's nests, where the first has this one."""
    if joins_partials(kernel) and (both := with_last_block(kernel.nests, schedule)) is not None:
        return both
    return (schedule,) * len(kernel.nests)


def _trial_plan(kernel: Kernel, call: KernelCall, buffers: Mapping[str, Buffer]) -> Plan:
    """A plan that makes this one launch, on buffers that it is given."""
    names = tuple(dict.fromkeys(call.buffers))
    given = tuple(replace(buffers[name], kind="input") for name in names)
    places = tuple(Place(name, "input") for name in names)
    step = replace(call, kernel=kernel.name)
    return Plan(kernel.name, names, given, (kernel,), (step,), (), places, as_expr(0))


def _loaded(host: CudaHost, built: TritonBuild, driver: Driver, device: int) -> dict[str, CudaKernel]:
    found: dict[str, Any] = {}
    for launch in host.launches:
        if launch.key in built.errors:
            raise built.errors[launch.key]
        found[launch.key] = driver.load(built.cubins[launch.key], device)
    return found
