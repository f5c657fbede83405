"""Generated programs of cut reductions whose results are read in parts, shifted or turned around, evaluated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.base.target import nvidia
from lamina.ir.loops import LoopProgram
from lamina.ir.loops_interp import run_program
from lamina.ir.loops_verify import verify_program
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import Fused, fuse
from lamina.schedule.gpu_split import spread
from lamina.schedule.grid_planning import GridPlanning
from lamina.schedule.memo import Memo
from lamina.schedule.plan import make_plan
from tests.lower.torch_private import traced

REDUCTIONS: list[Callable[[Tensor], Tensor]] = [
    lambda v: torch.softmax(v, 0),
    lambda v: torch.softmax(v, 1),
    lambda v: (v - v.mean(0)) * torch.rsqrt(v.var(0) + 1e-5),
    lambda v: v / v.abs().amax(0, keepdim=True),
    lambda v: F.normalize(v, dim=1).sin(),
]
READERS: list[Callable[[Tensor], Tensor]] = [
    lambda v: torch.diff(v, dim=0).sinh(),
    lambda v: v[1::2].tanh(),
    lambda v: v.flip(0) * v,
    lambda v: v[..., 1::2].exp() + v[..., :1],
    lambda v: torch.roll(v, 3, 1) - 2.0,
    lambda v: F.pad(v, (1, 2)).cos(),
    lambda v: F.silu(v.narrow(0, 1, v.shape[0] // 2)) * v.narrow(0, 0, v.shape[0] // 2),
    lambda v: v[:, 2:].softmax(-1),
    lambda v: v[0].log1p(),
]


def on(program: LoopProgram, device: str) -> LoopProgram:
    return replace(program, buffers=tuple(replace(b, device=device) for b in program.buffers))


def check(seed: int) -> bool:
    """Compare a program that is cut with eager's; whether a value went that only cutting had stored."""
    random = Random(seed)
    reduced, read, kept = random.choice(REDUCTIONS), random.choice(READERS), random.random() < 0.25
    x = torch.rand(
        random.choice([(700, 6, 8), (40, 300, 4), (1500, 3, 9)]), generator=torch.Generator().manual_seed(seed)
    )
    x = x.transpose(0, 1).contiguous().transpose(0, 1) if random.random() < 0.3 else x
    x = torch.stack([x, x], -1)[..., 0] if random.random() < 0.3 else x

    def function(x: Tensor) -> tuple[Tensor, ...]:
        value = reduced(x * 2)
        return (read(value), value) if kept else (read(value),)

    fused = on(fuse(lower(traced(function, [x]), "t")).program, "cuda:0")
    target = nvidia()
    apart, _ = spread(fused, target)
    made, decisions = GridPlanning(target).prepared(fused, None, Memo(), None)
    verify_program(made)
    for got, want in zip(run_program(on(made, "cpu"), [x]), function(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)
    taken = any(d.kind == "recompute" and d.taken for d in decisions)
    assert taken <= (len(made.steps) < len(apart.steps)), "a nest that only others read goes"
    assert not (taken and kept), "what is returned is stored in any case"
    return taken


def test_programs() -> None:
    assert sum(check(seed) for seed in (*range(12), 28, 42, 43, 49, 57, 66)) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 300))
def test_more_programs(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("step", [1, 2, 4])
def test_columns_beside_each_other_are_reduced_together_also_where_memory_has_gaps(step: int) -> None:
    """Programs of one column each would read every sector once for each of the columns that lie in it."""
    x = torch.rand(64, 4096, 16 * step)[..., ::step]
    fused = on(fuse(lower(traced(lambda x: (x.exp().amax(1),), [x]), "t")).program, "cuda:0")
    plan = make_plan(Fused(fused, ()), nvidia())
    assert plan.kernels[0].schedules[0].kind == "columns"
