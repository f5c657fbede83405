"""What becomes of rows of the sweep on an H100, written without a GPU: plans, kernels, and what the model expects.

``python -m benchmarks.gpu_plans 6108.fp32.training 6202.bf16.forward`` captures generated programs with fake tensors,
differentiates, partitions, lowers and schedules them as on a GPU, and prints of each region the bytes of its inputs and
results, its library calls, and of each nest the schedule, the bytes that it moves and the microseconds that
``schedule/gpu_work.py`` expects. ``--text`` adds loops and Triton sources, ``--decisions`` what was decided. Nothing
runs. What is asked of a device while a graph is captured (attention's kernels) is answered as on a CPU.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from math import prod
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.utils._pytree import tree_iter

from benchmarks.gpu_idle import H100, SCALE
from benchmarks.sweeping.case import Case, Variant
from benchmarks.sweeping.grammar import cases
from lamina.backends.api import Backend
from lamina.backends.device import Boxed, LoadedPlan
from lamina.backends.kernels import KERNEL_OPTIONS
from lamina.backends.written_plans import written_plan
from lamina.base.dtypes import DTYPES
from lamina.codegen.origins import triton_with_origins
from lamina.codegen.triton.emit import emit
from lamina.ir.loops import Buffer, LibraryCall, Nest
from lamina.ir.plan import GpuSchedule, KernelCall, Plan
from lamina.options import Options
from lamina.record import Record
from lamina.schedule.buffer_facts import estimate
from lamina.schedule.fuse import Fused
from lamina.schedule.gpu_cost import CostModel
from lamina.schedule.gpu_work import instructions, moved, work
from lamina.schedule.memo import Memo

__all__ = ["lines", "planned"]

_GPU = torch.device("cuda", 0)


@dataclass(slots=True)
class _Planner:
    """A device that goes as far as the plan; what it loads returns results of the right shapes without values."""

    plans_made: list[Plan] = field(default_factory=list)

    def plan(self, fused: Fused, gm: GraphModule, record: Record) -> Plan:
        del gm, record
        self.plans_made.append(written_plan(fused, H100, None, Memo()))
        return self.plans_made[-1]

    def codegen(self, planned: Plan, gm: GraphModule, record: Record) -> Plan:
        del gm, record
        return planned

    build = codegen

    def load(self, building: Plan, gm: GraphModule, record: Record) -> Boxed:
        del building, record
        results = [None if node is None else node.meta["val"] for node in gm.graph.output_node().args[0]]  # type: ignore

        def call(args: list[Any]) -> list[Any]:
            args.clear()
            return [_like(r) if isinstance(r, torch.Tensor) else r for r in results]

        return call

    def plans(self, planned: Plan) -> Sequence[Plan]:
        return [planned]

    def steps(self, building: Plan) -> LoadedPlan | None:
        del building
        return None


def _like(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


def _on_gpu(gm: GraphModule) -> GraphModule:
    """The graph as if it had been captured on a GPU."""
    for node in gm.graph.nodes:
        for value in tree_iter(node.meta.get("val")):
            if isinstance(value, FakeTensor):
                value.fake_device = _GPU
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": _GPU}
    return gm


def planned(case: Case, dtype: str, mode: str) -> tuple[list[Plan], Record]:
    """The plans of a generated program's regions, forward first, and the record of the compilation."""
    device, record = _Planner(), Record(case.name)
    backend = Backend("planned", kernels=lambda *_: device, writes=True, takes=KERNEL_OPTIONS)
    options = Options(compare_eager="off", cache=False, progress=False)
    driver = import_module("lamina.compile")  # the package's attribute of this name is the function
    as_on_cpu = driver._Stages.rewrite_joint

    def compiled(gm: GraphModule, inputs: Sequence[Any]) -> Any:
        return driver.compile_graph(gm, inputs, options, record, backend)

    torch.compiler.reset()
    with (
        patch.object(driver._Stages, "rewrite_joint", lambda self, gm: as_on_cpu(self, _on_gpu(gm))),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        problem = case.make(Variant(dtype, mode, "cpu", SCALE))
        out = torch.compile(problem.function, backend=compiled, dynamic=False)(*problem.args)
        if mode == "training":
            results = [t for t in tree_iter(out) if isinstance(t, torch.Tensor) and t.requires_grad]
            torch.autograd.backward(results, [torch.ones_like(t) for t in results])
    return device.plans_made, record


def lines(plan: Plan, text: bool = False) -> Iterator[str]:
    """A plan as it is printed."""
    buffers = plan.buffer_map()
    calls = [s for s in plan.steps if isinstance(s, KernelCall)]
    ends = [p.buffer for p in plan.places if p.where in ("input", "output")]
    traffic, expected = (sum(f(n, buffers) for c in calls for n in c.nests) for f in (moved, work))
    yield (
        f"region {plan.name}: {len(calls)} launches; inputs and results {_mb(sum(_bytes(buffers[n]) for n in ends))}, "
        f"kernels move {_mb(traffic)}, {_us(expected)}"
    )
    yield from (f"  library {step.op}" for step in plan.steps if isinstance(step, LibraryCall))
    launches, sizes = Counter(c.kernel for c in calls), {c.kernel: c for c in calls}
    sources = triton_with_origins({k.name: emit(k, H100) for k in plan.kernels}, plan) if text else {}
    for kernel in plan.kernels:
        call = sizes[kernel.name]
        taken, written = ", ".join(call.buffers), ", ".join(call.writes)
        yield f"  kernel {kernel.name} x{launches[kernel.name]}: {taken} writes {written}"
        values = {f"s{k}": int(size) for k, size in enumerate(call.sizes)}
        dtypes = {f"b{k}": dtype for k, dtype in enumerate(kernel.dtypes)}
        for nest, whole, schedule in zip(kernel.nests, call.nests, kernel.schedules, strict=True):
            assert isinstance(schedule, GpuSchedule)
            extents = {a.name: int(a.extent.evaluate(values)) for a in nest.axes}
            yield f"    {_shape(extents)} {_told(schedule)}"
            if schedule.kind != "product":
                yield f"      {_expected(nest, whole, schedule, dtypes, buffers, extents)}"
        if text:
            yield from (str(nest) for nest in kernel.nests)
            yield sources[kernel.name].text


def _expected(
    nest: Nest,
    whole: Nest,
    schedule: GpuSchedule,
    dtypes: dict[str, str],
    buffers: dict[str, Buffer],
    extents: dict[str, int],
) -> str:
    cost = CostModel(nest, dtypes, H100, extents)(schedule)
    each = instructions(whole, buffers) / max(prod(extents.values()), 1)
    return (
        f"moves {_mb(moved(whole, buffers))}, {each:.0f} instructions a point, {_us(work(whole, buffers))}; "
        f"{cost.programs} programs, {cost.resident} a processor, {cost.registers} registers, share {cost.share:.2f}"
    )


def _told(schedule: GpuSchedule) -> str:
    blocks = " ".join(f"{'*'.join(b.axes)}:{b.size}:{b.role}" for b in schedule.blocks)
    switches = ("online", "register_resident", "last_block", "evict_first", "approximate")
    flags = [name for name in switches if getattr(schedule, name)]
    flags += [f"{name} {getattr(schedule, name)}" for name in ("peel", "cluster") if getattr(schedule, name)]
    return f"{schedule.kind} [{blocks}] warps {schedule.warps} stages {schedule.stages} {' '.join(flags)}".rstrip()


def _shape(extents: dict[str, int]) -> str:
    return "(" + ", ".join(f"{name} {extent}" for name, extent in extents.items()) + ")"


def _bytes(buffer: Buffer) -> float:
    return prod(estimate(size) for size in buffer.shape) * DTYPES[buffer.dtype].size


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:.1f} MB"


def _us(nbytes: float) -> str:
    """Bytes that memory moves in a time, as that time."""
    return f"{nbytes / H100.copy_gbs / 1e3:.1f} us"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", metavar="NUMBER.DTYPE.MODE")
    parser.add_argument("--text", action="store_true", help="loops and Triton sources as well")
    parser.add_argument("--decisions", action="store_true", help="what was decided, with reasons")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for row in given.rows:
        number, dtype, mode = row.split(".")
        (case,) = cases(1, int(number), SCALE)
        print(f"{'=' * 40} {row}\n{case.text}")
        plans, record = planned(case, dtype, mode)
        for plan in plans:
            print("\n".join(lines(plan, given.text)))
        for decision in record.decisions() if given.decisions else ():
            print(f"  {decision.kind} {decision.subject} {decision.taken}: {decision.reason}")


if __name__ == "__main__":
    main()
