"""The GPU backend: plans, Triton kernels compiled in the background, and the host program that launches them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.backends.device import LoadedPlan
from lamina.backends.gpu_properties import gpu_target
from lamina.backends.reasons import (
    CUSTOM_OPERATION,
    FEW_LAUNCHES,
    MEMORY_CHANGES,
    NO_MACHINE_CODE,
    PARTLY_CPU,
    STAGE_LESS,
    UNALIGNED_INPUT,
    UNSAFE_OPERATION,
)
from lamina.backends.regions import (
    Boxed,
    aten_calls,
    build_threads,
    chosen_compiler,
    loaded_later,
    open_cache,
    progress_printer,
    warn_once,
)
from lamina.base.decision import Decision
from lamina.base.graph_pair import pair_of
from lamina.base.recovery import recover
from lamina.codegen.host_cuda import CudaHost, emit_cuda_host
from lamina.codegen.origins import triton_with_origins
from lamina.codegen.triton.emit import emit
from lamina.codegen.triton.source import TritonSource
from lamina.errors import StageFailed
from lamina.first_call.steps import empty_graph, single_step
from lamina.ir.access import writes
from lamina.ir.library import is_custom, unrecordable
from lamina.ir.loops import Buffer, LibraryCall, storage_bytes
from lamina.ir.loops_interp import run_nest
from lamina.ir.plan import GpuSchedule, Kernel, KernelCall, Plan
from lamina.ir.plan_verify import verify_plan
from lamina.library_algorithms.algorithm_choice import AlgorithmChoice
from lamina.library_algorithms.gelu_choice import GeluChoice
from lamina.masked_rows.kernels import serve_masked_rows
from lamina.masked_rows.units import masked_rows_units
from lamina.options import Options
from lamina.record import Record
from lamina.runtime.cache import Cache
from lamina.runtime.cuda_driver import CudaKernel, Driver, make_launcher
from lamina.runtime.cuda_graphs import GraphPolicy, GraphRunner, Outcome
from lamina.runtime.cuda_host import Flags
from lamina.runtime.graph_budget import graph_budget
from lamina.runtime.host import load_program
from lamina.runtime.toolchain import Compiler
from lamina.runtime.triton_build import TritonBuild, TritonUnit, build_triton
from lamina.runtime.triton_pool import TooMuchShared, TritonError, compiler_pool
from lamina.schedule.fuse import Fused
from lamina.schedule.memo import Memo
from lamina.schedule.memory import plan_memory
from lamina.schedule.order import peak_bytes
from lamina.schedule.plan import make_plan
from lamina.tuning.cuda import RegionTuning, triton_unit
from lamina.tuning.products import product_choice
from lamina.tuning.values import policy_of

__all__ = ["CudaBackend"]

_OWN_MEMORY = 1 << 20
"""Bytes from which a temporary is allocated and freed by itself, so that torch can use its memory in between."""

_FEWEST_LAUNCHES = 4
"""Launches from which replaying a graph can be cheaper for the host."""

_LIKELY = 1.14
"""The library's estimate over that of a product kernel of ours from which both are timed. Each candidate of ours takes
seconds to compile, and large products of ours take 1.01 to 1.26 times their estimate (H100 and H200: eleven products
with GELU, SiLU, sums and their gradients)."""

_POSSIBLE = 0.9
"""The same where time for tuning does not count."""


class CudaBackend:
    """The stages from a fused program to a callable for one GPU. One object serves one set of options and one GPU."""

    def __init__(self, options: Options, device: int) -> None:
        if find_spec("triton") is None:
            raise TritonError("Triton is not installed", remedy="pip install 'lamina[gpu]'")
        self.options, self.device = options, device
        self.target = gpu_target(device, options.numerics == "fast")
        self.cache = open_cache(options)
        self.policy = policy_of(options.mode)
        compiler_pool(options.jobs).start()
        self._driver = build_threads().submit(_driver, options.cxx, self.cache)
        serve_masked_rows(device, lambda units: self.built("masked rows", units), lambda: self.driver)

    def plan(self, fused: Fused, gm: GraphModule, record: Record) -> RegionTuning:
        """The fused program as kernels with their schedules, and which of them are timed before the first call."""
        del gm
        region = fused.program.name
        memo = Memo()
        plan: Plan = record.step(region, "plan", self.planned, fused, memo)
        if self.options.verify is True:
            record.step(region, "verify", verify_plan, plan)
        algorithms = AlgorithmChoice(self.device, self.target, self.cache, self.policy)
        tuning: RegionTuning = record.step(region, "candidates", self.tuning, plan, fused, algorithms, memo)
        if decisions := algorithms.decisions:
            record.add(region, "algorithms", algorithms.seconds, None, decisions)
        return tuning

    def codegen(self, tuning: RegionTuning, gm: GraphModule, record: Record) -> CudaSources:
        """The kernels' texts and the host program."""
        plan = tuning.meanwhile
        work = CudaRegion(self, plan, record, gm)
        record.step(plan.name, "codegen", work.generate)
        host: CudaHost = record.step(plan.name, "host", work.host, True)
        return CudaSources(work, host, tuning)

    def build(self, sources: CudaSources, gm: GraphModule, record: Record) -> CudaKernels:
        """The kernels and candidates for them, which threads in the background begin to build."""
        del gm
        region, tuning = sources.work.plan.name, sources.tuning
        building = build_threads().submit(sources.work.build, sources.host)
        if called := masked_rows_units(sources.work.plan):
            build_threads().submit(self.built, region, called)
        if not tuning.open:
            record.keep(region, "tune", tuning.tuned)
            return CudaKernels(sources, building, None)
        trying = build_threads().submit(self.built, region, tuning.units, self.policy.patience)
        return CudaKernels(sources, building, trying)

    def load(self, kernels: CudaKernels, gm: GraphModule, record: Record) -> Boxed:
        """The host program with its kernels, which the first call waits for and loads."""
        return loaded_later(kernels.sources.work.plan.name, kernels.program, record, gm, self.options.strict)

    def plans(self, tuning: RegionTuning) -> tuple[Plan, ...]:
        """The plan that runs while candidates are tried."""
        return (tuning.meanwhile,)

    def steps(self, kernels: CudaKernels) -> LoadedPlan | None:
        """What runs the kernels one by one; None where none has machine code."""
        return kernels.sources.work.steps()

    @property
    def driver(self) -> Driver:
        """What loads kernels; waits for its launcher, which a C++ compiler makes once per machine."""
        return self._driver.result()

    def gelu_choice(self, note: Callable[[Decision], None]) -> GeluChoice:
        """What is asked where the library could do a product's GELU."""
        return GeluChoice(self.device, self.target, self.cache, self.policy, note)

    def tuning(self, plan: Plan, fused: Fused, algorithms: AlgorithmChoice, memo: Memo) -> RegionTuning:
        """Which kernels' schedules, and which products, are to be timed before the first call.

        Kernels for products are timed against the library's best algorithm: that is chosen now.
        """
        least = _LIKELY if self.policy.doubt < float("inf") else _POSSIBLE
        chosen = algorithms if self.options.numerics == "fast" else lambda plan: plan
        plan, products = product_choice(chosen(plan), lambda settled: chosen(self.planned(fused, memo, settled)), least)
        return RegionTuning(plan, self.target, self.device, self.cache, self.policy, products)

    def planned(self, fused: Fused, memo: Memo, products: Mapping[str, bool] | None = None) -> Plan:
        """The plan, with some products settled, and large temporaries and those on the CPU in memory of their own."""

        def alone(buffer: Buffer) -> bool:
            nbytes = storage_bytes(buffer)
            return buffer.device == "cpu" or not nbytes.is_int or nbytes.const >= _OWN_MEMORY

        plan = make_plan(fused, self.target, products, memo)
        places, arena = plan_memory(plan.steps, plan.buffers, plan.inputs, plan.outputs, alone)
        return replace(plan, places=places, arena_bytes=arena)

    def built(self, region: str, units: Sequence[TritonUnit], patience: float | None = None) -> TritonBuild:
        """Look the kernels up in the cache and compile what is missing, waiting ``patience`` seconds at most."""
        return build_triton(
            units,
            patience=patience,
            capability=self.target.capability,
            cache=self.cache,
            pool=lambda: compiler_pool(self.options.jobs),
            on_progress=progress_printer(region, "kernels") if self.options.progress else None,
        )


@cache  # values of the options cxx and cache_dir
def _driver(cxx: str, cache: Cache) -> Driver:
    compiler = chosen_compiler(cxx, cache)
    return Driver(launcher=make_launcher(compiler if isinstance(compiler, Compiler) else None, cache))


class CudaRegion:
    """One region on its way from a Plan to a callable.

    ``reasons`` says of each kernel without machine code why; such a kernel is evaluated equation by equation.
    """

    def __init__(self, backend: CudaBackend, plan: Plan, record: Record, gm: GraphModule) -> None:
        self.backend, self.plan, self.record, self.gm = backend, plan, record, gm
        placeholders = gm.graph.find_nodes(op="placeholder")
        self.donated = frozenset(
            name
            for name, node in zip(plan.inputs, placeholders, strict=True)
            if isinstance(name, str) and node.meta.get("donated")
        )
        self.sources: dict[str, TritonSource] = {}
        self.reasons: dict[str, str] = {}
        self.guard = threading.Lock()
        self.ready: Boxed | None = None
        self.loaded = False

    def generate(self) -> dict[str, TritonSource]:
        """The Triton source of each distinct kernel."""
        for kernel in self.plan.kernels:
            self._emit(kernel)
        self.sources = triton_with_origins(self.sources, self.plan)
        return self.sources

    def _emit(self, kernel: Kernel) -> None:
        try:
            self.sources[kernel.name] = emit(kernel, self.backend.target)
        except Exception as error:
            if self.backend.options.strict:
                raise
            self.reasons[kernel.name] = f"{type(error).__name__}: {error}"

    def host(self, aligned: bool) -> CudaHost:
        return emit_cuda_host(
            self.plan, self.sources, self.backend.device, frozenset(self.reasons), aligned, self.donated
        )

    def build(self, host: CudaHost) -> TritonBuild:
        return self.backend.built(self.plan.name, [triton_unit(launch) for launch in host.launches])

    def load(self, host: CudaHost, building: Future[TritonBuild] | None = None, aligned: bool = True) -> Boxed:
        """The region as a callable; waits for its kernels. Kernels that failed are left out of its host program.

        One that reads more steps ahead than shared memory holds is built again with one fewer: what a compiler adds to
        the tiles that a schedule counts is known only then.
        """
        built = self.build(host) if building is None else building.result()
        self.record.add(self.plan.name, "build", built.seconds, built)
        kernels: dict[str, CudaKernel] = {}
        greedy: dict[str, str] = {}
        for launch in host.launches:
            try:
                if launch.key in built.errors:
                    raise built.errors[launch.key]
                kernels[launch.key] = self.backend.driver.load(built.cubins[launch.key], self.backend.device)
            except TritonError as error:
                reasons = greedy if isinstance(error, TooMuchShared) else self.reasons
                reasons[launch.kernel] = error.what
        for name, why in greedy.items():
            self._read_less_ahead(name, why)
        if len(self.reasons) == len(self.plan.kernels) > 0:
            if self.backend.options.strict:
                name, why = next(iter(self.reasons.items()))
                raise StageFailed(f"building {self.plan.name} failed: {name}: {why}", remedy="unset the option strict")
            self._say("lamina runs regions as ATen calls", "no kernel has machine code")
            return aten_calls(self.gm)
        if len(kernels) < len(host.launches):
            return self.load(self.host(aligned), aligned=aligned)
        if self.reasons:
            self._say("lamina runs kernels equation by equation", f"{len(self.reasons)} of {len(self.plan.kernels)}")
        return self._program(host, kernels, aligned)

    def _read_less_ahead(self, name: str, why: str) -> None:
        """Give a kernel's loops one stage less; its failure is final if they have but one."""
        (kernel,) = (k for k in self.plan.kernels if k.name == name)
        ours = [s for s in kernel.schedules if isinstance(s, GpuSchedule)]
        schedules = tuple(replace(s, stages=max(s.stages - 1, 1)) for s in ours)
        if schedules == kernel.schedules:
            self.reasons[name] = why
            return
        changed = replace(kernel, schedules=schedules)
        self.plan = replace(self.plan, kernels=tuple(changed if k is kernel else k for k in self.plan.kernels))
        decision = Decision("schedule", (name,), True, STAGE_LESS(why=why))
        self.record.note(self.plan.name, "stages", decision)
        self._emit(changed)

    def tuned(
        self, tuning: RegionTuning, trying: Future[TritonBuild], host: CudaHost, building: Future[TritonBuild]
    ) -> Boxed:
        """The region with the schedules that win, as a callable; waits for all candidates and times them once."""
        with self.guard:
            if self.ready is None:
                changed = self._settle(tuning, trying)
                self.ready = self.load(changed) if changed is not None else self.load(host, building)
            return self.ready

    def _settle(self, tuning: RegionTuning, trying: Future[TritonBuild]) -> CudaHost | None:
        """The host program of the winners, None where they are what was planned."""
        name = self.plan.name
        try:
            built = trying.result()
            self.record.add(name, "build candidates", built.seconds, built)
            plan = tuning.finish(built, self.backend.driver)
        except Exception as error:
            recover(
                error,
                doing="timing schedules",
                region=name,
                instead="it uses those that were planned, which it has not timed",
                strict=self.backend.options.strict,
                note=self.record.noting(name, "tune"),
                kind="tune",
            )
            return None
        self.record.keep(name, "tune", tuning.tuned)
        if plan == self.plan:
            return None
        self.plan = plan
        self.sources.clear()
        self.record.step(name, "codegen", self.generate)
        host: CudaHost = self.record.step(name, "host", self.host, True)
        return host

    def _say(self, what: str, how_many: str) -> None:
        name, reason = next(iter(self.reasons.items()))
        warn_once(f"{what}: {self.plan.name}, {how_many}; {name}: {reason}")
        decisions = tuple(Decision("fallback", (k,), True, NO_MACHINE_CODE(why=why)) for k, why in self.reasons.items())
        self.record.note(self.plan.name, "fallback", *decisions)

    def _program(self, host: CudaHost, kernels: dict[str, CudaKernel], aligned: bool) -> Boxed:
        general: Boxed | None = None

        def unaligned(args: list[Any]) -> Any:
            """The program for inputs at any address, compiled when there is one."""
            nonlocal general
            if general is None:
                start = time.perf_counter()
                general = self.load(self.host(aligned=False), aligned=False)
                self.record.add(self.plan.name, "unaligned", time.perf_counter() - start)
            return general(args)

        flags = Flags(host.messages) if host.messages else None
        namespace = {
            "kernels": kernels,
            "interpreted": {k.name: _interpreted(k) for k in self.plan.kernels},
            "failed": flags,
            "unaligned": unaligned,
        }
        call: Boxed = load_program(host.text, "call", namespace)
        self.loaded = True
        if aligned:
            return self._with_graphs(call, flags)
        if self.backend.options.mode != "max-autotune-no-cudagraphs":
            self._note_graphs(Outcome(False, UNALIGNED_INPUT()))
        return call

    def steps(self) -> LoadedPlan | None:
        """What runs the kernels one by one; None where none has machine code."""
        if not self.loaded:
            return None
        return LoadedPlan(self.plan, self.run_step, {name: source.text for name, source in self.sources.items()}, ".py")

    def run_step(self, step: KernelCall, buffers: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        """Run one kernel of the plan by itself."""
        plan = single_step(self.plan, step)
        alone = CudaRegion(self.backend, plan, Record(), empty_graph(len(plan.inputs)))
        alone.generate()
        run = alone.load(alone.host(False), aligned=False)
        if alone.reasons:
            raise StageFailed(f"{step.kernel} has no machine code")
        run([buffers[given] if isinstance(given, str) else sizes[given.name] for given in plan.inputs if given])

    def _with_graphs(self, call: Boxed, flags: Flags | None) -> Boxed:
        """The program behind a runner that records CUDA graphs, where the mode and the plan allow it."""
        mode, insist = self.backend.options.mode, self.backend.options.mode == "reduce-overhead"
        launches = self.plan.kernel_count + self.plan.library_count
        custom = [s.op for s in self.plan.steps if isinstance(s, LibraryCall) and is_custom(s.op)]
        if mode == "max-autotune-no-cudagraphs":
            return call
        if self.reasons or any(b.device == "cpu" for b in self.plan.buffers):
            why = PARTLY_CPU()
        elif any(unrecordable(op) for op in custom):
            why = UNSAFE_OPERATION()
        elif not insist and custom:
            why = CUSTOM_OPERATION(operation=custom[0])
        elif not insist and launches < _FEWEST_LAUNCHES:
            why = FEW_LAUNCHES(count=launches)
        elif not insist and not all(storage_bytes(b).is_int for b in self.plan.buffers):
            why = MEMORY_CHANGES()
        else:
            nbytes = peak_bytes(self.plan.steps, self.plan.buffer_map(), self.plan.inputs, self.plan.outputs)
            budget = None if insist else graph_budget(self.backend.device)
            written = {b for step in self.plan.steps for b in writes(step)}
            places = frozenset(k for k, name in enumerate(self.plan.inputs) if name in written)
            poll = flags.report if flags else None
            policy = GraphPolicy(insist, places, poll, nbytes, budget, pair_of(self.gm))
            return GraphRunner(call, self.backend.device, policy, self._note_graphs)
        self._note_graphs(Outcome(False, why))
        return call

    def _note_graphs(self, outcome: Outcome) -> None:
        figures = {"host": outcome.direct_us, "gpu": outcome.gpu_us, "replay": outcome.replay_us}
        facts = tuple((f"{name}_us", round(us, 1)) for name, us in figures.items() if us)
        decision = Decision("graph", (self.plan.name,), outcome.taken, outcome.reason, facts)
        self.record.note(self.plan.name, "graphs", decision)


@dataclass(frozen=True, slots=True)
class CudaSources:
    """The texts of a region, which is at ``work``: its kernels', its ``host`` program's and those of candidates."""

    work: CudaRegion
    host: CudaHost
    tuning: RegionTuning


@dataclass(frozen=True, slots=True)
class CudaKernels:
    """The kernels of a region that are ``building``, and candidates for them, which are being built for ``trying``."""

    sources: CudaSources
    building: Future[TritonBuild]
    trying: Future[TritonBuild] | None

    def program(self) -> Boxed:
        """The host program with its kernels, waited for, with the schedules that win where some are tried."""
        work, host = self.sources.work, self.sources.host
        if self.trying is None:
            return work.load(host, self.building)
        return work.tuned(self.sources.tuning, self.trying, host, self.building)


def _interpreted(kernel: Kernel) -> Callable[[Sequence[torch.Tensor], Sequence[int]], None]:
    """The kernel's nests evaluated by torch, on flat tensors of one device and numbers of the CPU."""

    def run(flats: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        named = dict(zip(kernel.sizes, sizes, strict=True))
        for nest in kernel.nests:
            stored = [flats[int(name[1:])].device for name in writes(nest)]
            device = stored[0] if stored else flats[0].device
            there = {f"b{k}": t.to(device) if t.numel() == 1 else t for k, t in enumerate(flats)}
            with torch.device(device):
                run_nest(nest, there, named)

    return run
