"""What a plan settles by itself is said: loops of kernels, wide indices, memory that is used again."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lamina.base.decision import Decision
from lamina.base.target import cpu, nvidia
from lamina.ir.loops import LoopProgram
from lamina.ir.plan import Plan
from lamina.lower.library_decisions import library_decisions
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = torch.mm(torch.softmax(x, -1), w)
    return x


def lowered(*args: torch.Tensor) -> LoopProgram:
    return lower(make_fx(chain, tracing_mode="fake")(*args), "region")


def of_kind(plan: Plan, kind: str) -> list[Decision]:
    return [d for d in plan.decisions if d.kind == kind]


def test_each_kernel_has_its_loops() -> None:
    args = torch.empty(32, 32), torch.empty(32, 32)
    plan = make_plan(fuse(lowered(*args)), cpu())
    assert [d.subject for d in of_kind(plan, "tile")] == [(kernel.name,) for kernel in plan.kernels]
    assert all(dict(d.facts)["index_bits"] == 64 for d in of_kind(plan, "tile"))


def test_only_what_is_large_has_wide_indices_on_a_gpu() -> None:
    for rows, bits in ((32, 32), (1 << 17, 64)):
        with torch.device("meta"):
            args = torch.empty(rows, 1 << 15), torch.empty(1 << 15, 1 << 15)
        plan = make_plan(fuse(lowered(*args)), nvidia())
        assert {dict(d.facts)["index_bits"] for d in of_kind(plan, "tile")} == {bits}
        assert len(of_kind(plan, "index width")) == (len(plan.kernels) if bits == 64 else 0)


def test_memory_that_is_used_again_names_its_owners() -> None:
    plan = make_plan(fuse(lowered(torch.empty(32, 32), torch.empty(32, 32))), cpu())
    offsets = {p.buffer: p.offset for p in plan.places if p.where == "arena"}
    told = of_kind(plan, "reuse")
    assert len(told) == len(offsets) - len(set(offsets.values())) > 0
    for decision in told:
        new, old = decision.subject
        assert offsets[new] == offsets[old]


def test_calls_of_libraries_have_reasons() -> None:
    (decision,) = library_decisions(lowered(torch.empty(32, 32), torch.empty(32, 32)))
    assert decision.subject[0] == "aten.mm.default"
    assert dict(decision.facts)["calls"] == 4
    assert decision.code == "LM4500"
