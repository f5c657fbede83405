"""What readers compute again instead of storing it: the kernels in Triton's interpreter, against eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from lamina.ir.loops_interp import run_program
from lamina.ir.loops_verify import verify_program
from lamina.ir.plan import KernelCall
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from tests.codegen.triton.harness import Interpreter
from tests.codegen.triton.test_plans import run
from tests.codegen.triton.test_pools import planned
from tests.lower.torch_private import traced
from tests.schedule.test_gathers import on

Function = Callable[..., tuple[Tensor, ...]]


def neighbours(x: Tensor) -> tuple[Tensor]:
    v = F.silu(x)
    return (v.narrow(0, 1, 12) + v.narrow(0, 0, 12),)


def differences(x: Tensor) -> tuple[Tensor]:
    return (torch.diff(torch.diff(x.tanh(), dim=1), dim=0),)


def rolled(x: Tensor) -> tuple[Tensor]:
    v = torch.roll(x.sigmoid(), (1, -2), (0, 1))
    return (torch.roll(torch.hypot(v, x), 3, 1) * v,)


def reflected(x: Tensor) -> tuple[Tensor]:
    return (F.pad(F.gelu(x), (2, 1), mode="reflect") * 0.5,)


def repeated(x: Tensor) -> tuple[Tensor]:
    return (F.pad(x.exp(), (0, 3), mode="replicate").atan(),)


def side_by_side(x: Tensor) -> tuple[Tensor]:
    v = x.cos()
    return (torch.cumsum(torch.cat([v, v.abs(), x], 1).flip(1) * 0.1, 1),)


def turned(x: Tensor) -> tuple[Tensor]:
    v = x.clamp(-1, 1) + x.sin()
    return (torch.cat([-v.narrow(1, 4, 3), v.narrow(1, 0, 4)], 1).sigmoid(),)


def pooled(x: Tensor) -> tuple[Tensor]:
    return (F.avg_pool2d(x.sin().unsqueeze(0).unsqueeze(0), 2),)


def summed(x: Tensor) -> tuple[Tensor]:
    v = x.tanh()
    return ((v.narrow(0, 1, 12) * v.narrow(0, 0, 12)).sum(1),)


def gradient(x: Tensor) -> tuple[Tensor]:
    """Of the sines of neighbours' products."""
    s = x.sigmoid()
    v = x * s
    first, second = v.narrow(0, 0, 12), v.narrow(0, 1, 12)
    g = (first * second).cos()
    return ((F.pad(g * first, (0, 0, 1, 0)) + F.pad(g * second, (0, 0, 0, 1))) * (s + v * (1 - s)),)


def rolled_pieces(x: Tensor) -> tuple[Tensor]:
    """A stack of costly parts rolled along itself, and pieces of which one is rolled over the end."""
    parts = torch.roll(torch.stack([x.sin().tanh().erf(), x.abs()], 0) * x, 1, 0)
    return (torch.roll(torch.cat([parts * 2.0, x.cos().unsqueeze(0)], 0).exp(), (1, 2), (0, 2)),)


ONE_KERNEL = [
    *(neighbours, differences, rolled, rolled_pieces, reflected, repeated, side_by_side, turned, pooled, summed),
    gradient,
]


@pytest.mark.parametrize("function", ONE_KERNEL, ids=lambda f: f.__name__)
def test_readers_compute_it(interpreter: Interpreter, function: Function) -> None:
    x = torch.randn(13, 7, generator=torch.Generator().manual_seed(0))
    plan = planned(function, (x,))
    (step,) = plan.steps
    assert isinstance(step, KernelCall)
    torch.testing.assert_close(run(plan, interpreter, [x.clone()]), list(function(x)))


def test_what_stores_all_pieces_has_a_name_of_its_own() -> None:
    def twice(x: Tensor) -> tuple[Tensor, ...]:
        many = torch.cat([x.narrow(0, k, 1 + k) for k in range(5)], 0)
        return many, torch.cat([x.narrow(1, 1, 3).cos(), x], 1)

    with FakeTensorMode():
        program = fuse(lower(traced(twice, [torch.empty(13, 7, device="cuda")]), "t")).program
    verify_program(program)
    assert len(program.steps) == 6


@pytest.mark.parametrize("function", ONE_KERNEL, ids=lambda f: f.__name__)
def test_halves_are_rounded_as_when_they_are_stored(function: Function) -> None:
    x = torch.randn(13, 7, generator=torch.Generator().manual_seed(0)).bfloat16()
    with FakeTensorMode():
        lowered = lower(traced(function, [torch.empty(13, 7, dtype=x.dtype, device="cuda")]), "t", "eager")
    fused = fuse(lowered, "eager").program
    assert len(fused.steps) == 1
    found, expected = (run_program(on(p, "cpu"), [x.clone()]) for p in (fused, lowered))
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours != theirs).float().mean() < 0.03  # torch's vectors and their rests differ in the last place


def kept(x: Tensor) -> tuple[Tensor, Tensor]:
    v = x.sin()
    return v, v.narrow(0, 1, 12) - v.narrow(0, 0, 12)


def drawn(x: Tensor) -> tuple[Tensor]:
    v = torch.cumsum(x, 1)
    return (v.narrow(0, 1, 12) - v.narrow(0, 0, 12),)


@pytest.mark.parametrize("function", [kept, drawn])
def test_what_is_in_memory_anyway_or_no_value_of_its_own_place_is_read(function: Function) -> None:
    assert len(planned(function, (torch.randn(13, 7),)).steps) == 2


def test_arithmetic_may_cost_more_than_memory() -> None:
    def dear(x: Tensor) -> tuple[Tensor]:
        v = torch.lgamma(x) + torch.digamma(x)
        return (v.narrow(1, 0, 2**20) - v.narrow(1, 5, 2**20) + v.narrow(1, 9, 2**20) * v.narrow(1, 10, 2**20),)

    assert len(planned(dear, (torch.empty(8, 2**20 + 16, device="meta"),)).steps) == 2


def test_scans_are_given_no_divided_places_and_little_to_compute() -> None:
    def shuffled(x: Tensor) -> tuple[Tensor]:
        v = torch.rsqrt(F.hardswish(x).exp() + 0.5).sigmoid()
        return (torch.cumprod(F.pixel_shuffle(v, 2), 2),)

    assert len(planned(shuffled, (torch.empty(96, 256, 34, 34, device="meta"),)).steps) == 2
