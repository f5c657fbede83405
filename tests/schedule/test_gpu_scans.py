"""Long scans cut into parts for a GPU, evaluated: values stay, and programs are enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.ir.loops import LoopProgram, Nest, Scan
from lamina.ir.loops_interp import run_program
from lamina.ir.loops_verify import verify_program
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.gpu_split import spread
from lamina.schedule.gpu_target import GpuTarget
from tests.lower.torch_private import traced

TARGET = GpuTarget(approximate=True)
NUMBERS = torch.rand(8192, 3, generator=torch.Generator().manual_seed(0))


def on(program: LoopProgram, device: str) -> LoopProgram:
    return replace(program, buffers=tuple(replace(b, device=device) for b in program.buffers))


def cut(function: Callable[..., Any], args: list[Tensor], target: GpuTarget = TARGET) -> LoopProgram:
    """The fused program cut for a GPU, whose values are checked."""
    fused = on(fuse(lower(traced(function, args), "t")).program, "cuda:0")
    made, _ = spread(fused, target)
    verify_program(made)
    for got, want in zip(run_program(on(made, "cpu"), args), function(*args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
    return made


def scans(program: LoopProgram) -> list[int]:
    """The points of each scan, in order."""
    return [
        next(a.extent.const for a in step.axes if a.name == e.axis)
        for step in program.steps
        if isinstance(step, Nest)
        for e in step.body
        if isinstance(e, Scan)
    ]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.cumsum(0),),
        lambda x: ((x * 1e-3 + 1).cumprod(0),),
        lambda x: ((x > 0.5).cumsum(0) - 1,),
        lambda x: (x.t().contiguous().cumsum(1) * 2 + x.t(),),
        lambda x: ((x[:, :1] == torch.arange(3)).to(torch.int64).cumsum(0),),
        lambda x: (x.reshape(-1).cumsum(0),),
    ],
)
def test_a_long_scan_is_one_of_parts(function: Callable[..., Any]) -> None:
    parts, inside = scans(cut(function, [NUMBERS]))
    assert parts * inside in (8192, 3 * 8192)
    assert inside <= 2048


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: (x.cumsum(0),), (1024, 3)),  # short
        (lambda x: (x.cumsum(0),), (4099, 2)),  # no parts of equal length
        (lambda x: (x.cumsum(0),), (4096, 600)),  # enough scans for all processors
        (lambda x: (x.logcumsumexp(0),), (8192, 2)),
    ],
)
def test_a_scan_stays_whole(function: Callable[..., Any], shape: tuple[int, int]) -> None:
    assert scans(cut(function, [torch.rand(shape)])) == [shape[0]]


def test_sums_of_floats_keep_eagers_order_where_that_is_asked_for() -> None:
    exact = GpuTarget(approximate=False)
    assert scans(cut(lambda x: (x.cumsum(0),), [NUMBERS], exact)) == [8192]
    assert len(scans(cut(lambda x: ((x > 0.5).cumsum(0),), [NUMBERS], exact))) == 2
