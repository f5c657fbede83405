"""The GPU backend: plans, Triton kernels compiled in the background, and the host program that launches them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

import torch
from torch.fx import GraphModule

from lamina.backends.cuda_builder import GpuBuilder
from lamina.backends.cuda_region import CudaRegion
from lamina.backends.device import LoadedPlan
from lamina.backends.regions import (
    Boxed,
    build_threads,
    loaded_later,
    open_cache,
)
from lamina.backends.written_plans import written_plan
from lamina.base.decision import Decision
from lamina.base.machine_target import target_of
from lamina.codegen.host_cuda import CudaHost
from lamina.ir.loops import Buffer, storage_bytes
from lamina.ir.plan import Plan
from lamina.ir.plan_verify import verify_plan
from lamina.library_algorithms.algorithm_choice import AlgorithmChoice
from lamina.library_algorithms.gelu_choice import GeluChoice
from lamina.masked_rows.kernels import serve_masked_rows
from lamina.masked_rows.units import masked_rows_units
from lamina.options import Options
from lamina.record import Record
from lamina.runtime.triton_build import TritonBuild
from lamina.runtime.triton_pool import TritonError
from lamina.schedule.fuse import Fused
from lamina.schedule.memo import Memo
from lamina.schedule.memory import plan_memory
from lamina.tuning.cuda import RegionTuning
from lamina.tuning.products import product_choice
from lamina.tuning.values import policy_of

__all__ = ["CudaBackend"]

_OWN_MEMORY = 1 << 20
"""Bytes from which a temporary is allocated and freed by itself, so that torch can use its memory in between."""

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
        self.target = target_of(torch.device("cuda", device), approximate=options.numerics == "fast")
        self.cache = open_cache(options)
        self.policy = policy_of(options.mode)
        self.builder = GpuBuilder(options, device, self.target, self.cache)
        serve_masked_rows(device, partial(self.builder.built, "masked rows"), self.builder.launching.result)

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
        work = CudaRegion(self.builder, plan, record, gm)
        record.step(plan.name, "codegen", work.generate)
        host: CudaHost = record.step(plan.name, "host", work.host, True)
        return CudaSources(work, host, tuning)

    def build(self, sources: CudaSources, gm: GraphModule, record: Record) -> CudaKernels:
        """The kernels and candidates for them, which threads in the background begin to build."""
        del gm
        region, tuning = sources.work.plan.name, sources.tuning
        building = build_threads().submit(sources.work.build, sources.host)
        if called := masked_rows_units(sources.work.plan):
            build_threads().submit(self.builder.built, region, called)
        if not tuning.open:
            record.keep(region, "tune", tuning.tuned)
            return CudaKernels(sources, building, None)
        trying = build_threads().submit(self.builder.built, region, tuning.units, self.policy.patience)
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

    def gelu_choice(self, note: Callable[[Decision], None]) -> GeluChoice:
        """What is asked where the library could do a product's GELU."""
        return GeluChoice(self.device, self.target, self.cache, self.policy, note)

    def tuning(self, plan: Plan, fused: Fused, algorithms: AlgorithmChoice, memo: Memo) -> RegionTuning:
        """Which kernels' schedules, and which products, are to be timed before the first call.

        Kernels for products are timed against the library's best algorithm: that is chosen now.
        """
        least = _LIKELY if self.policy.doubt < float("inf") else _POSSIBLE
        estimates = dict(memo.products)  # another plan leaves others there

        def chosen(plan: Plan) -> Plan:
            return algorithms(plan) if self.options.numerics == "fast" else plan

        def replanned(settled: Mapping[str, bool]) -> Plan:
            return chosen(self.planned(fused, memo, settled))

        plan, products = product_choice(chosen(plan), estimates, replanned, least)
        policy = self.policy.for_region(len(plan.kernels))
        return RegionTuning(plan, self.target, self.device, self.cache, policy, products)

    def planned(self, fused: Fused, memo: Memo, products: Mapping[str, bool] | None = None) -> Plan:
        """The plan, with some products settled, and large temporaries and those on the CPU in memory of their own."""

        def alone(buffer: Buffer) -> bool:
            nbytes = storage_bytes(buffer)
            return buffer.on_cpu or not nbytes.is_int or nbytes.const >= _OWN_MEMORY

        plan = written_plan(fused, self.target, products, memo)
        places, arena = plan_memory(plan.steps, plan.buffers, plan.inputs, plan.outputs, alone)
        return replace(plan, places=places, arena_bytes=arena)


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
