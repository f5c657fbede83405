"""The CPU backend: plans, C++ kernels built in the background, and the host program that runs them."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.codegen.cpp.emit import emit
from lamina.codegen.cpp.prelude import prelude
from lamina.codegen.host import HostKernel, HostProgram, emit_host
from lamina.ir.plan import Kernel, Plan
from lamina.ir.plan_verify import verify_plan
from lamina.options import Options
from lamina.record import Record, Stage
from lamina.runtime.build import BuildResult, build_kernels
from lamina.runtime.cache import Cache, cache_root
from lamina.runtime.host import load_program
from lamina.runtime.kernel import KernelFunction, KernelUnit
from lamina.runtime.toolchain import find_compiler, host_isa
from lamina.schedule.fuse import Fused
from lamina.schedule.plan import make_plan
from lamina.schedule.target import Target

__all__ = ["CpuBackend"]

Boxed = Callable[[list[Any]], Any]

_PROGRESS_SECONDS = 2.0


class CpuBackend:
    """Compiles fused programs for this machine's CPU. One object serves one set of options."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.isa = host_isa() if options.simd == "auto" else options.simd
        self.target = Target.of(self.isa, torch.get_num_threads())
        self.cache = _cache(options.cache_dir, options.cache)

    def __call__(self, fused: Fused, record: Record, gm: GraphModule) -> Boxed:
        """Plan and generate now, build in the background, load at the first call."""
        region = fused.program.name
        plan: Plan = record.step(region, "plan", make_plan, fused, self.target)
        if self.options.verify:
            record.step(region, "verify", verify_plan, plan)
        host: HostProgram = record.step(region, "host", emit_host, plan)
        units = record.step(region, "codegen", self.units, plan, host)
        building = _pool().submit(self.build, region, units)
        return _lazy(region, host, building, record, gm)

    def units(self, plan: Plan, host: HostProgram) -> list[KernelUnit]:
        """The source of each distinct kernel of a plan."""
        launched = {k.name: k for k in host.kernels}
        return [self.unit(kernel, launched[kernel.name]) for kernel in plan.kernels]

    def unit(self, kernel: Kernel, how: HostKernel) -> KernelUnit:
        source = emit(kernel, self.target)
        function = KernelFunction(kernel.name, how.parameters, how.checked)
        return KernelUnit(kernel.name, source, (function,), prelude(self.isa, self.options.numerics == "eager"))

    def build(self, region: str, units: list[KernelUnit]) -> BuildResult:
        """Look the kernels up in the cache and compile what is missing."""
        said = 0.0

        def progress(finished: int, files: int, seconds: float) -> None:
            nonlocal said
            if seconds - said >= _PROGRESS_SECONDS:
                said = seconds
                done = f"{finished}/{files} files, {seconds:.0f} s"
                print(f"lamina: {region}: compiling kernels, {done}", file=sys.stderr)

        return build_kernels(
            units,
            compiler=find_compiler(self.options.cxx, self.cache),
            isa=self.isa,
            cache=self.cache,
            jobs=self.options.jobs,
            on_progress=progress if self.options.progress else None,
        )


@cache
def _cache(folder: str, enabled: bool) -> Cache:
    return Cache(cache_root(folder) if enabled else None)


@cache
def _pool() -> ThreadPoolExecutor:
    """Builds wait for compilers most of the time, so a few threads serve any number of regions."""
    return ThreadPoolExecutor(max_workers=4, thread_name_prefix="lamina-build")


def _lazy(region: str, host: HostProgram, building: Future[BuildResult], record: Record, gm: GraphModule) -> Boxed:
    """A callable that waits for the kernels when it is first called."""
    run: Boxed | None = None

    def call(args: list[Any]) -> Any:
        nonlocal run
        if run is None:
            start = time.perf_counter()
            run = _load(region, host, building.result(), record, gm)
            record.add(region, "wait", time.perf_counter() - start)
        return run(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _load(region: str, host: HostProgram, built: BuildResult, record: Record, gm: GraphModule) -> Boxed:
    record.stages.append(Stage(region, "build", built, built.seconds))
    if built.errors:
        name, error = next(iter(built.errors.items()))
        _warn_once(f"lamina runs regions as ATen calls: {len(built.errors)} kernels not built, {name}: {error}")
        return aten_calls(gm)
    return load_program(host.text, "call", {"kernels": built.kernels})


_warned: set[str] = set()


def _warn_once(message: str) -> None:
    kind = message.partition(":")[0]
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(message, stacklevel=3)


def aten_calls(gm: GraphModule) -> Boxed:
    """The graph run node by node through ATen."""

    def call(args: list[Any]) -> Any:
        inputs = list(args)
        args.clear()
        return gm.forward(*inputs)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
