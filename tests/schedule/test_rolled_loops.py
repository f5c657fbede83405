"""Rolls of what a kernel computes: its loops go around their ends, and one kernel is left where that is faster."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.ir.index import Axis, Loaded, as_expr
from lamina.ir.loops import LoopProgram, Nest
from lamina.ir.loops_interp import run_program
from lamina.ir.loops_verify import verify_program
from lamina.lower.to_loops import lower
from lamina.schedule.align import rolled
from lamina.schedule.fuse import fuse
from tests.lower.torch_private import traced


def on(program: LoopProgram, device: str) -> LoopProgram:
    return replace(program, buffers=tuple(replace(b, device=device) for b in program.buffers))


def windows(x: Tensor, size: int) -> Tensor:
    n, h, w, c = x.shape
    return x.view(n, h // size, size, w // size, size, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, size * size, c)


def shifted_windows(x: Tensor) -> Tensor:
    return windows(torch.roll(F.layer_norm(x, (x.shape[-1],)), (-3, -3), (1, 2)), 7)


def rolled_rows(x: Tensor) -> Tensor:
    return torch.lerp(torch.roll(F.log_softmax(x, 1) * 0.1, (2,), (0,)), x, 0.25)


def both_readers(x: Tensor) -> Tensor:
    made = x.softmax(-1)
    return made * 2 + torch.roll(made, 1, 0)


def along_memory(x: Tensor) -> Tensor:
    return torch.roll((x - x.mean(0)).exp(), 3, 1) + x


def sum_over_rolled(x: Tensor) -> Tensor:
    return torch.roll(x.softmax(-1), 3, 0).cumsum(0) + torch.roll(x.sin(), -1, 0).argmax(0)


def nests(function: Callable[..., Any], *args: Tensor) -> int:
    """How many nests the function is on a GPU; its values are checked."""
    program = fuse(on(lower(traced(function, args), "t"), "cuda:0")).program
    verify_program(program)
    results = function(*args)
    for got, want in zip(run_program(on(program, "cpu"), args), results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    return sum(isinstance(step, Nest) for step in program.steps)


@pytest.mark.parametrize(
    ("function", "shape", "count"),
    [
        (shifted_windows, (4, 28, 28, 32), 1),
        (rolled_rows, (37, 50), 1),
        (both_readers, (9, 33), 2),  # one reader wants both orders
        (along_memory, (8, 40), 2),  # accesses that begin anywhere in a row are not wide
        (sum_over_rolled, (9, 5), 3),  # scanned in its own order
        (rolled_rows, (1, 50), 1),
        (lambda x: torch.roll(x.softmax(-1), x.shape[0], 0) * 2, (6, 20), 1),
        (lambda x: torch.roll(torch.roll(x.softmax(-1), 2, 0).softmax(-1), 3, 0), (9, 20), 1),
    ],
)
def test_loops_go_around(function: Callable[[Tensor], Tensor], shape: tuple[int, ...], count: int) -> None:
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert nests(lambda x: (function(x),), x) == count


def _step(draw: random.Random) -> Callable[[Tensor], Tensor]:
    shift, axis = draw.randint(-9, 9), draw.randrange(3)
    choices: Sequence[Callable[[Tensor], Tensor]] = (
        lambda x: torch.roll(x, shift, axis),
        lambda x: torch.roll(x, (shift, shift + 1), (axis, (axis + 1) % 3)),
        lambda x: torch.roll(x, (shift, 2), (0, 1)),
        lambda x: F.layer_norm(x, x.shape[-1:]),
        lambda x: x.softmax(axis),
        lambda x: x + torch.roll(x, shift, axis),
        lambda x: x - x.amax(axis, keepdim=True),
        lambda x: x.flip(axis) * 0.5,
        lambda x: x.cumsum(axis) * 0.3,
        lambda x: x.sigmoid() + x,
        lambda x: x.transpose(0, 1).contiguous().transpose(0, 1) * 2,
        lambda x: x.reshape(2, 2, 6, 10).permute(1, 0, 2, 3).reshape(4, 6, 10) if x.shape == (4, 6, 10) else x,
    )
    return draw.choice(choices)


@pytest.mark.sampled(one_in=9)
@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int) -> None:
    draw = random.Random(seed)
    steps = [_step(draw) for _ in range(draw.randint(2, 6))]

    def function(x: Tensor) -> Tensor:
        for step in steps:
            x = step(x)
        return x

    x = torch.randn(4, 6, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    nests(lambda x: (function(x),), x)
    leaf = x.clone().requires_grad_()
    nests(lambda x: torch.autograd.grad(function(x), x, torch.ones_like(function(x))), leaf)


def test_parts_of_places_that_go_around() -> None:
    a, b = Axis("i0", as_expr(8)), Axis("i1", as_expr(7))
    found = rolled((as_expr(a) * 7 + as_expr(b) + 3) % as_expr(56))
    assert found is not None
    assert (found.shift, found.extent, found.places.axes()) == (as_expr(3), as_expr(56), {"i0", "i1"})
    assert rolled(as_expr(a) + 3) is None
    assert rolled((as_expr(a) * 2 + 3) % as_expr(56)) is None  # it goes around twice and leaves places out
    assert rolled((as_expr(a) + 3) % as_expr(9)) is None


def test_a_place_that_is_loaded_is_no_shift() -> None:
    """Two nests may load different values by one name."""
    axis = Axis("i0", as_expr(12))
    assert rolled((as_expr(axis) + 3) % 12) is not None
    assert rolled((as_expr(axis) + as_expr(Loaded("v0", as_expr(12)))) % 12) is None
