"""Generated programs of shifted, padded and joined values: grouped for a GPU, they are what they were."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.ir.loops_interp import run_program
from lamina.ir.loops_verify import verify_program
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from tests.lower.torch_private import traced
from tests.schedule.test_gathers import on

Step = Callable[[Tensor], Tensor]

POINTWISE: list[Step] = [torch.sin, F.silu, torch.tanh, torch.sigmoid, lambda v: v * v - 0.25]


def shifted(random: Random, v: Tensor) -> Step:
    """A step that fits a tensor like ``v``."""
    dim, turn, left = random.randrange(v.dim()), random.randrange(-3, 4), random.randrange(3)
    n, last = v.shape[dim], v.shape[-1]
    steps: list[Step] = [
        lambda v: torch.diff(v, dim=dim),
        lambda v: v.narrow(dim, 1, n - 1) + v.narrow(dim, 0, n - 1),
        lambda v: torch.roll(v, turn, dim),
        lambda v: F.pad(v, (left, 1)),
        lambda v: F.pad(v, (1, 2), mode=random_mode),
        lambda v: torch.cat([v, v.abs()], dim),
        lambda v: torch.cat([-v.narrow(dim, n // 2, n // 2), v.narrow(dim, 0, n // 2)], dim),
        lambda v: F.avg_pool1d(v, 2),
        lambda v: v.flip(dim),
        lambda v: v - v.mean(dim, keepdim=True),
        lambda v: torch.cumsum(v * 0.1, dim),
        lambda v: torch.softmax(v, -1),
    ]
    random_mode = random.choice(["reflect", "replicate"])
    return random.choice(steps) if n > 3 and last > 3 else torch.cos


def function_of(seed: int, x: Tensor) -> Callable[[Tensor], tuple[Tensor, ...]]:
    random, steps, v = Random(seed), [], x
    for _ in range(random.randrange(2, 6)):
        for step in (random.choice(POINTWISE), shifted(random, v)):
            v = step(v)
            steps.append((step, random.random() < 0.1))

    def forward(x: Tensor) -> tuple[Tensor, ...]:
        v, kept = x, []
        for step, keep in steps:
            v = step(v)
            if keep:
                kept.append(v)
        return (v, *kept)

    def training(x: Tensor) -> tuple[Tensor, ...]:
        results = forward(x)
        return (*results, *torch.autograd.grad([r.sum() for r in results], x))

    return training if seed % 2 else forward


def check(seed: int, numerics: str) -> int:
    """Compare the program grouped for a GPU with the one that was lowered; how many values are computed again."""
    shape = Random(seed).choice([(2, 5, 7), (1, 8, 16), (3, 13, 5)])
    dtype = torch.bfloat16 if seed % 3 == 0 and numerics == "eager" else torch.float32
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_(bool(seed % 2))
    lowered = lower(traced(function_of(seed, x), [x]), "t", numerics)
    found = fuse(on(lowered, "cuda:0"), numerics)
    verify_program(found.program)
    results = [list(run_program(p, [x.detach().clone()])) for p in (on(found.program, "cpu"), lowered)]
    tolerance = 1e-5 if dtype == torch.float32 else 0.03  # torch's vectors and their rests differ in the last place
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance, equal_nan=True)
    return sum(d.kind == "recompute" and d.taken for d in found.decisions)


@pytest.mark.parametrize("numerics", ["eager", "fast"])
def test_programs(numerics: str) -> None:
    assert sum(check(seed, numerics) for seed in range(8)) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 200))
def test_more_programs(seed: int) -> None:
    for numerics in ("eager", "fast"):
        check(seed, numerics)
