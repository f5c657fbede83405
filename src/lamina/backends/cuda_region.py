"""One region of a GPU on its way from a plan to a callable: its kernels, host program and CUDA graphs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.backends.cuda_builder import GpuBuilder
from lamina.backends.cuda_times import timed_calls
from lamina.backends.device import LoadedPlan
from lamina.backends.kept_kernels import kept_kernels
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
    donated_inputs,
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
from lamina.ir.loops import LibraryCall, storage_bytes
from lamina.ir.loops_interp import run_nest
from lamina.ir.plan import GpuSchedule, Kernel, KernelCall, Plan
from lamina.record import Record
from lamina.runtime.cuda_driver import CudaKernel
from lamina.runtime.cuda_graphs import GraphPolicy, GraphRunner, Outcome
from lamina.runtime.cuda_host import Flags
from lamina.runtime.graph_budget import graph_budget
from lamina.runtime.host import load_program
from lamina.runtime.triton_build import TritonBuild
from lamina.runtime.triton_pool import TooMuchShared, TritonError
from lamina.schedule.order import peak_bytes
from lamina.tuning.cuda import RegionTuning
from lamina.tuning.cuda_trials import triton_unit

__all__ = ["CudaRegion"]

_FEWEST_LAUNCHES = 4
"""Launches from which replaying a graph can be cheaper for the host."""


class CudaRegion:
    """One region on its way from a Plan to a callable.

    ``reasons`` says of each kernel without machine code why; such a kernel is evaluated equation by equation.
    """

    def __init__(self, builder: GpuBuilder, plan: Plan, record: Record, gm: GraphModule) -> None:
        self.builder, self.plan, self.record, self.gm = builder, plan, record, gm
        self.donated = donated_inputs(plan, gm)
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
            self.sources[kernel.name] = emit(kernel, self.builder.target)
        except Exception as error:
            if self.builder.options.strict:
                raise
            self.reasons[kernel.name] = f"{type(error).__name__}: {error}"

    def host(self, aligned: bool) -> CudaHost:
        return emit_cuda_host(
            self.plan, self.sources, self.builder.device, frozenset(self.reasons), aligned, self.donated
        )

    def build(self, host: CudaHost) -> TritonBuild:
        return self.builder.built(self.plan.name, [triton_unit(launch) for launch in host.launches])

    def load(self, host: CudaHost, building: Future[TritonBuild] | None = None, aligned: bool = True) -> Boxed:
        """The region as a callable; waits for its kernels. Kernels that failed are left out of its host program.

        One that reads more steps ahead than shared memory holds is built again with one fewer: what a compiler adds to
        the tiles that a schedule counts is known only then.
        """
        built = self.build(host) if building is None else building.result()
        self.record.add(self.plan.name, "build", built.seconds, built)
        self.record.told(self.plan.name, "cache", kept_kernels, self.plan.name, built)
        kernels: dict[str, CudaKernel] = {}
        greedy: dict[str, str] = {}
        for launch in host.launches:
            try:
                if launch.key in built.errors:
                    raise built.errors[launch.key]
                kernels[launch.key] = self.builder.driver.load(built.cubins[launch.key], self.builder.device)
            except TritonError as error:
                reasons = greedy if isinstance(error, TooMuchShared) else self.reasons
                reasons[launch.kernel] = error.what
        for name, why in greedy.items():
            self._read_less_ahead(name, why)
        if len(self.reasons) == len(self.plan.kernels) > 0:
            if self.builder.options.strict:
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
            plan = tuning.finish(built, self.builder.driver, partial(self.builder.built, f"{name}: search"))
        except Exception as error:
            recover(
                error,
                doing="timing schedules",
                region=name,
                instead="it uses those that were planned, which it has not timed",
                strict=self.builder.options.strict,
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
            return self._timed(self._with_graphs(call, flags), host, namespace)
        if self.builder.options.mode != "max-autotune-no-cudagraphs":
            self._note_graphs(Outcome(False, UNALIGNED_INPUT()))
        return call

    def _timed(self, call: Boxed, host: CudaHost, namespace: Mapping[str, Any]) -> Boxed:
        """``call``, whose first calls note the times of launches where the record wants them."""
        times = self.record.launch_times(self.plan.name)
        if times is None:
            return call

        def program(kernels: Mapping[str, Any]) -> Boxed:
            return load_program(host.text, "call", {**namespace, "kernels": kernels})

        return timed_calls(call, program, host.launches, namespace["kernels"], self.builder.device, times)

    def steps(self) -> LoadedPlan | None:
        """What runs the kernels one by one; None where none has machine code."""
        if not self.loaded:
            return None
        return LoadedPlan(self.plan, self.run_step, {name: source.text for name, source in self.sources.items()}, ".py")

    def run_step(self, step: KernelCall, buffers: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        """Run one kernel of the plan by itself."""
        plan = single_step(self.plan, step)
        alone = CudaRegion(self.builder, plan, Record(), empty_graph(len(plan.inputs)))
        alone.generate()
        run = alone.load(alone.host(False), aligned=False)
        if alone.reasons:
            raise StageFailed(f"{step.kernel} has no machine code")
        run([buffers[given] if isinstance(given, str) else sizes[given.name] for given in plan.inputs if given])

    def _with_graphs(self, call: Boxed, flags: Flags | None) -> Boxed:
        """The program behind a runner that records CUDA graphs, where the mode and the plan allow it."""
        mode, insist = self.builder.options.mode, self.builder.options.mode == "reduce-overhead"
        launches = self.plan.kernel_count + self.plan.library_count
        custom = [s.op for s in self.plan.steps if isinstance(s, LibraryCall) and is_custom(s.op)]
        if mode == "max-autotune-no-cudagraphs":
            return call
        if self.reasons or any(b.on_cpu for b in self.plan.buffers):
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
            budget = None if insist else graph_budget(self.builder.device)
            written = {b for step in self.plan.steps for b in writes(step)}
            places = frozenset(k for k, name in enumerate(self.plan.inputs) if name in written)
            poll = flags.report if flags else None
            policy = GraphPolicy(insist, places, poll, nbytes, budget, pair_of(self.gm))
            return GraphRunner(call, self.builder.device, policy, self._note_graphs)
        self._note_graphs(Outcome(False, why))
        return call

    def _note_graphs(self, outcome: Outcome) -> None:
        figures = {"host": outcome.direct_us, "gpu": outcome.gpu_us, "replay": outcome.replay_us}
        facts = tuple((f"{name}_us", round(us, 1)) for name, us in figures.items() if us)
        decision = Decision("graph", (self.plan.name,), outcome.taken, outcome.reason, facts)
        self.record.note(self.plan.name, "graphs", decision)


def _interpreted(kernel: Kernel) -> Callable[[Sequence[torch.Tensor], Sequence[int]], None]:
    """The kernel's nests evaluated by torch, on flat tensors of one device and numbers of the CPU."""

    def run(flats: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        named = dict(zip(kernel.sizes, sizes, strict=True))
        for nest in kernel.nests:
            stored = [flats[int(name[1:])].device for name in writes(nest)]
            device = stored[0] if stored else flats[0].device
            there = {f"b{k}": t.to(device) if t.numel() == 1 else t for k, t in enumerate(flats)}
            run_nest(nest, there, named)

    return run
