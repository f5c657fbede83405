"""Every candidate of a kernel computes the same: plans run with each of them in Triton's interpreter, against eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.ir.plan import GpuSchedule, KernelCall, Plan
from lamina.schedule.gpu_space import candidates
from lamina.testing import judge, tensors
from lamina.tuning.kernels import axis_lengths
from tests.codegen.triton.harness import Interpreter
from tests.codegen.triton.test_plans import SMALL, planned, run

torch.manual_seed(0)

CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "pointwise": (lambda x, b: F.relu(x + b), (torch.randn(6, 80), torch.randn(80))),
    "transposed": (lambda x, y: x.t() + y, (torch.randn(70, 40), torch.randn(40, 70))),
    "rows": (lambda x, w: F.layer_norm(x, (96,), w), (torch.randn(20, 96), torch.randn(96))),
    "long rows": (lambda x: F.layer_norm(x, (3000,)), (torch.randn(3, 3000),)),
    "peeled rows": (lambda x: x.softmax(-1), (torch.randn(3, 2501).bfloat16(),)),
    "looped rows": (lambda x: (x - x.amax(-1, keepdim=True)).exp().sum(-1), (torch.randn(3, 40000),)),
    "columns": (lambda x: x.sum(0), (torch.randn(300, 40),)),
    "columns, written": (lambda x: x - x.mean(0), (torch.randn(520, 8),)),
    "rows and columns": (lambda x: (x - x.sum(1, keepdim=True), (x * 2).sum(0)), (torch.randn(20, 96),)),
    "groups": (lambda x: x / x.unflatten(-1, (-1, 8)).abs().amax(-1).repeat_interleave(8, -1), (torch.randn(9, 64),)),
    "scan": (lambda x: x.cumsum(-1), (torch.randn(7, 300),)),
    "scan beside": (lambda x: x.cumsum(0), (torch.randn(100, 20),)),
    "rolled rows": (lambda x: torch.lerp(torch.roll(x.softmax(-1), 2, 0), x, 0.25), (torch.randn(9, 33),)),
    "distances": (lambda x, y: (x[:, None] - y[None]).abs().amax(-1), (torch.randn(40, 3), torch.randn(70, 3))),
    "scan beside two axes": (
        lambda x, y: (x * y).cumsum(1) * y,
        (torch.randn(3, 20, 9, 17), torch.randn(3, 20, 17, 9).transpose(2, 3)),
    ),
    "tiles with gaps": (
        lambda x, y: torch.atan2(torch.expm1(torch.roll(x, (4, -1), (3, 2))).sigmoid(), y.abs() + 0.5).erf(),
        (torch.randn(2, 18, 9, 17), torch.randn(2, 9, 17, 18).permute(0, 3, 1, 2)),
    ),
    "columns gone over three times": (
        lambda x, y: torch.atan2(F.log_softmax(torch.erf(x), 0), y.abs() + 0.5),
        (torch.randn(20, 6, 40), torch.randn(20, 40, 6).transpose(1, 2)),
    ),
    "cosines beside columns": (lambda x, w: torch.cos(x)[:, None] + w, (torch.randn(300), torch.randn(16))),
    "a row's condition": (
        lambda x, y: ((c := y > 0), torch.where(c, x, -x).exp()),
        (torch.randn(40, 51), torch.randn(40, 1)),
    ),
    "gather": (lambda i, t: F.embedding(i, t), (torch.randint(50, (40,)), torch.randn(50, 24))),
}
MOST = 5


def varied(plan: Plan) -> Iterator[tuple[GpuSchedule, Plan]]:
    """The plan with one kernel's schedule exchanged for another candidate."""
    for kernel in plan.kernels:
        call = next(s for s in plan.steps if isinstance(s, KernelCall) and s.kernel == kernel.name)
        if len(kernel.nests) > 1:
            continue
        dtypes = {f"b{k}": d for k, d in enumerate(kernel.dtypes)}
        (nest,) = kernel.nests
        first, *others = candidates(nest, dtypes, SMALL, axis_lengths(nest, call), MOST)
        assert first.schedule == kernel.schedules[0]
        for ranked in others:
            changed = replace(kernel, schedules=(ranked.schedule,))
            yield ranked.schedule, replace(plan, kernels=tuple(changed if k is kernel else k for k in plan.kernels))


@pytest.mark.parametrize("name", ["scan beside two axes", "tiles with gaps"])
def test_tiles_without_gaps_are_candidates(interpreter: Interpreter, name: str) -> None:
    """Where tiles of several axes compute points that do not exist one block of all of them is tried, and early."""
    function, arguments = CASES[name]
    kernel = next(k for k in planned(function, *arguments).kernels if len(k.nests) == 1)
    (nest,), dtypes = kernel.nests, {f"b{k}": d for k, d in enumerate(kernel.dtypes)}
    first, second, *_ = (r.schedule for r in candidates(nest, dtypes, SMALL))
    shared = [[b for b in s.blocks if b.role == "grid" and b.size > 1] for s in (first, second)]
    assert len(shared[0]) > 1
    assert len(shared[1]) == 1
    assert set(shared[1][0].axes) >= {a for b in shared[0] for a in b.axes}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", CASES)
def test_candidates_agree(interpreter: Interpreter, name: str) -> None:
    function, arguments = CASES[name]
    wide = [a.double() if a.is_floating_point() else a for a in arguments]
    eager, exact = tensors(function(*arguments)), tensors(function(*wide))
    tried = 0
    for schedule, plan in varied(planned(function, *arguments)):
        for mine, theirs, right in zip(run(plan, interpreter, arguments), eager, exact, strict=True):
            complaint = judge(mine, theirs, right)
            assert not complaint, f"{schedule}: {complaint}"
        tried += 1
    assert tried > 0
