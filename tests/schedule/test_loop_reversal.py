"""What is read from its end is made in that order, in one kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.ir.loops import LoopProgram, Nest
from lamina.ir.loops_interp import run_program
from lamina.ir.loops_verify import verify_program
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from tests.lower.torch_private import traced


def on(program: LoopProgram, device: str) -> LoopProgram:
    return replace(program, buffers=tuple(replace(b, device=device) for b in program.buffers))


def costly(x: Tensor) -> Tensor:
    return torch.atan2(torch.sigmoid(x), x.exp() + 1).sin()


def both_ways(x: Tensor) -> tuple[Tensor, ...]:
    return (x.flip(0).cumsum(0) + x,)


def nests(function: Callable[..., Any], *args: Tensor) -> int:
    """How many nests the function is on a GPU; its values are checked."""
    program = fuse(on(lower(traced(function, args), "t"), "cuda:0")).program
    verify_program(program)
    for got, want in zip(run_program(on(program, "cpu"), args), function(*args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    return sum(isinstance(step, Nest) for step in program.steps)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: (costly(x).flip(0).cumsum(0),), 1),
        (lambda x: (costly(x).flip(1).cumsum(1) * 2,), 1),
        (lambda x: (costly(costly(x).flip(0, 1)).cumsum(1),), 1),
        (lambda x: (x.flip(0).cumsum(0).flip(0),), 1),
        (lambda x: (costly(costly(x.cumsum(0)).flip(0)),), 1),
        (lambda x: both_ways(costly(x)), 2),  # both ways
        (lambda x: (costly(costly(x).sum(1)).flip(0).cumsum(0),), 2),
    ],
)
def test_loops_are_turned_around(function: Callable[..., Any], count: int) -> None:
    assert nests(function, torch.randn(7, 5, generator=torch.Generator().manual_seed(0))) == count
