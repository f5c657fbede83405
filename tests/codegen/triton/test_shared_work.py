"""Kernels of programs whose work is shared out anew: packed truth values and signs, pieces that alternate, rows that
are only read, reductions of which much is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.aot import graph_compiler
from lamina.ir.loops import LoopProgram, Reduce
from lamina.ir.plan import KernelCall, Plan
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan
from lamina.testing import judge, tensors
from tests.aot.reference import Reference
from tests.codegen.triton.harness import Interpreter
from tests.codegen.triton.test_plans import SMALL, run
from tests.lower.torch_private import traced
from tests.schedule.test_gathers import on
from tests.schedule.test_gpu_split import much

UNCACHED = replace(SMALL, l2_bytes=1 << 12)
BF16 = torch.bfloat16


def plan_of(program: LoopProgram) -> Plan:
    return make_plan(fuse(on(program, "cuda:0")), UNCACHED)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def masked_mean(x: Tensor, m: Tensor) -> Tensor:
    return torch.where(m, x * 0.875, 0.0).sum() / m.sum()


def distances(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).norm(dim=1).mean()


def trapezoids(x: Tensor, y: Tensor) -> Tensor:
    return torch.trapz(y, x)


def interleaved(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.stack([x * 2, y + 1, z.exp()], -1) * 0.5


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], int]] = {
    "masked mean": (masked_mean, (numbers(40000), numbers(40000) > 0), 1),
    "distances of long rows": (distances, (numbers(64, 1100), numbers(64, 1100) * 2), 1),
    "rows read at two places": (trapezoids, (numbers(3, 2301, dtype=BF16), numbers(3, 2301, dtype=BF16)), 1),
    "pieces that alternate": (interleaved, (numbers(7, 33), numbers(7, 33) * 2, numbers(7, 33) * 3), 1),
    "columns of much": (lambda x: much(x).sum(0), (numbers(96, 130),), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_values(interpreter: Interpreter, name: str) -> None:
    function, arguments, kernels = CASES[name]
    plan = plan_of(lower(traced(function, arguments), "test"))
    assert sum(isinstance(step, KernelCall) for step in plan.steps) == kernels
    ours = run(plan, interpreter, arguments)
    exact = tensors(function(*(a.double() if a.is_floating_point() else a for a in arguments)))
    for mine, theirs, right in zip(ours, tensors(function(*arguments)), exact, strict=True):
        assert not judge(mine, theirs, right)


def hinge(x: Tensor, y: Tensor) -> Tensor:
    return F.hinge_embedding_loss(x * 0.875, y, reduction="none", margin=0.5).abs() * 0.5


def test_packed_values(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each region's kernels give what its graph does, bytes of truth values and of signs included."""
    monkeypatch.setattr(graph_compiler, "device_of", lambda joint: "cuda")
    torch._dynamo.reset()
    reference = Reference()
    x, y = numbers(24, 33), torch.where(numbers(24, 33) > 0.5, 1.0, -1.0)
    reference.compile(hinge)(x.requires_grad_(), y).sum().backward()
    saved: Sequence[Tensor] = ()
    for kind, given in (("forward", (x.detach(), y)), ("backward", (torch.ones(24, 33),))):
        (region,) = [r for r in reference.regions if r.kind == kind]
        arguments = (*saved, *given)
        expected = tensors(region.gm(*arguments))
        ours = run(plan_of(lower(region.gm, kind)), interpreter, arguments)
        for mine, theirs in zip(ours, expected, strict=True):
            assert torch.equal(mine, theirs)
        saved = ours[1:]
        if kind == "forward":
            assert {torch.uint8, torch.int8} <= {t.dtype for t in saved}


def test_truth_values_are_counted_in_32_bits(interpreter: Interpreter) -> None:
    x = numbers(37, 900)
    plan = plan_of(lower(traced(lambda x: ((x > 0).sum(), (x > 1).sum(1), x.sum()), (x,)), "test"))
    reduces = [e for k in plan.kernels for nest in k.nests for e in nest.body if isinstance(e, Reduce)]
    assert {e.dtype for e in reduces} == {"int32", "float32"}
    for mine, right in zip(run(plan, interpreter, (x,))[:2], ((x > 0).sum(), (x > 1).sum(1)), strict=True):
        assert torch.equal(mine, right)
