"""Nests of the sweep's generated programs that would leave most of a GPU idle, found without a GPU.

``python -m benchmarks.gpu_idle --programs 60`` lowers, fuses and schedules the programs for an H100, forward and with
gradients, and lists the nests of many points of which each thread gets very many: too few programs share them.
Nothing runs. ``--only 135`` prints what becomes of one program.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.sweeping.case import Case, Variant
from benchmarks.sweeping.grammar import cases
from lamina.base.target import nvidia
from lamina.errors import LaminaError
from lamina.ir.index import prod
from lamina.ir.plan import GpuSchedule, KernelCall, Plan
from lamina.lower.rules import CannotLower
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.gpu_cost import CostModel
from lamina.schedule.plan import make_plan

__all__ = ["H100", "Idle", "idle_nests", "planned"]

H100 = nvidia("NVIDIA H100", 132, 90, 2600.0, 50 << 20)
SCALE = 32.0
MANY = 200_000
"""Points of a nest that is looked at."""
EACH = 1024
"""Points of a thread that are too many."""


@dataclass(frozen=True, slots=True)
class Idle:
    """A nest whose threads have ``each`` points: ``programs`` programs of ``warps`` warps over these axes."""

    program: str
    kernel: str
    kind: str
    points: int
    programs: int
    warps: int
    each: float
    axes: dict[str, int]


def planned(case: Case, mode: str, dtype: str = "bf16") -> Plan:
    """The plan of a generated program for an H100; raises what tracing and lowering raise."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        graph = _traced(case, Variant(dtype, mode, "cpu", SCALE))
    program = lower(graph, "program")
    buffers = tuple(replace(b, device="cuda:0") for b in program.buffers)
    return make_plan(fuse(replace(program, buffers=buffers)), H100)


def _traced(case: Case, variant: Variant) -> GraphModule:
    problem = case.make(variant)

    def with_gradients(*args: Any) -> Any:
        out = problem.function(*args)
        leaves = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
        return out, torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)

    if variant.training:
        graph = make_fx(with_gradients)(*problem.args)
    else:
        graph = make_fx(problem.function)(*[a.detach() if isinstance(a, torch.Tensor) else a for a in problem.args])
    graph.graph.eliminate_dead_code()
    return graph


def idle_nests(name: str, plan: Plan, each: float = EACH) -> Iterator[Idle]:
    """The nests of a plan that too few programs share."""
    sizes = {s.kernel: s.sizes for s in plan.steps if isinstance(s, KernelCall)}
    for kernel in plan.kernels:
        values = {f"s{k}": int(size) for k, size in enumerate(sizes[kernel.name])}
        dtypes = {f"b{k}": dtype for k, dtype in enumerate(kernel.dtypes)}
        for nest, schedule in zip(kernel.nests, kernel.schedules, strict=True):
            if not isinstance(schedule, GpuSchedule) or schedule.kind == "product":
                continue
            extents = {a.name: int(a.extent.evaluate(values)) for a in nest.axes}
            points = int(prod(extents.values()))
            programs = CostModel(nest, dtypes, H100, extents)(schedule).programs
            own = points / (programs * 32 * schedule.warps)
            if points >= MANY and own > each:
                yield Idle(name, kernel.name, schedule.kind, points, programs, schedule.warps, round(own, 1), extents)


def look(chosen: Sequence[Case], each: float = EACH) -> tuple[list[Idle], Counter[str]]:
    """Idle nests of all programs, and how many programs were planned or, by the reason, not."""
    found: list[Idle] = []
    counts: Counter[str] = Counter()
    for case in chosen:
        for mode in ("forward", "training"):
            try:
                plan = planned(case, mode)
            except (LaminaError, CannotLower, RuntimeError, NotImplementedError) as problem:
                counts[f"not planned: {type(problem).__name__}"] += 1
                continue
            counts["planned"] += 1
            for idle in idle_nests(f"{case.name}.{mode}", plan, each):
                print(idle, flush=True)
                found.append(idle)
    return found, counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="number of the first program")
    parser.add_argument("--only", type=int, nargs="*", default=[])
    parser.add_argument("--each", type=float, default=EACH, help="points of a thread that are too many")
    parser.add_argument("--json", default=str(Path(__file__).parent / "results" / "gpu_idle.json"))
    given = parser.parse_args()
    if given.only:
        for number in given.only:
            (case,) = cases(1, number, SCALE)
            print(case.text)
            look([case], 0)
        return
    found, counts = look(cases(given.programs, given.seed, SCALE), given.each)
    print(f"{len(found)} idle nests; {dict(counts)}")
    result = {"first": given.seed, "programs": given.programs, "each": given.each, "counts": dict(counts)}
    text = json.dumps({**result, "idle": [asdict(one) for one in found]}, indent=1)
    Path(given.json).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
