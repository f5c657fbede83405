"""Every two kernels between which something passes, or that read one buffer, have a reason to be two."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import lamina.backends.cpu as cpu_backend
from benchmarks import corpus
from benchmarks.gpu_idle import H100
from lamina.base.reasons import registered
from lamina.base.target import cpu
from lamina.ir.access import reads, writes
from lamina.ir.loops import LoopProgram
from lamina.ir.plan import KernelCall, Plan
from lamina.lower.to_loops import lower
from lamina.record import Record
from lamina.schedule import reasons
from lamina.schedule.boundaries import boundaries
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan
from tests.ir.examples import pointwise_chain, simple_plan

PROGRAMS = [p for p in corpus.programs(2, 10_000) if not p.name.startswith("operator_") and p.name.endswith("training")]


def plans(program: corpus.Program, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plan]:
    """The plans of a program for this machine, and those of its regions for an H100."""
    made: list[Record] = []
    monkeypatch.setattr(cpu_backend, "build_together", corpus._not_built)
    monkeypatch.setattr(corpus, "_sections", lambda record: made.append(record) or ())
    torch.compiler.reset()
    corpus.texts(program)
    for value in (stage.value for record in made for stage in record.stages):
        if isinstance(value, Plan):
            yield value
        elif isinstance(value, LoopProgram):
            buffers = tuple(replace(b, device="cuda:0") for b in value.buffers)
            yield make_plan(fuse(replace(value, buffers=buffers)), H100)


def pairs(plan: Plan) -> set[tuple[str, str]]:
    """The steps, by name, of which one reads what the other writes, or that are kernels that read one buffer."""
    return {
        (a.name, b.name)
        for a, b in itertools.combinations(plan.steps, 2)
        if writes(a) & reads(b) or (isinstance(a, KernelCall) and isinstance(b, KernelCall) and reads(a) & reads(b))
    }


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_each_boundary_has_a_reason_with_a_code(program: corpus.Program, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = {code.number for section in registered() for code in section}
    found = list(plans(program, monkeypatch))
    assert found
    for plan in found:
        told = boundaries(plan)
        assert {(b.first, b.second) for b in told} == pairs(plan)
        assert not [b for b in told if b.reason.code not in codes or not (b.flow or b.shared)]


def test_the_step_between_two_kernels_is_a_library_call() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.mm(torch.exp(x), w)) + torch.sum(x)

    program = lower(make_fx(function, tracing_mode="fake")(torch.randn(8, 8), torch.randn(8, 8)), "region")
    told = boundaries(make_plan(fuse(program), cpu()))
    assert reasons.LIBRARY_CALL.number in {b.reason.code for b in told if b.flow}


def test_kernels_that_nobody_tried_to_join_are_said_to_fit() -> None:
    told = boundaries(simple_plan(pointwise_chain(3)))
    assert {b.reason.code for b in told} == {reasons.MADE_LATER.number}
    assert all(b.flow for b in told)
