"""Kernels of convolutions of each channel with a filter of its own: in Triton's interpreter, and compiled for sm_90."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.base.target import Target, nvidia
from lamina.codegen.triton.emit import emit
from lamina.ir.plan import Plan
from lamina.ir.plan_verify import verify_plan
from lamina.schedule.plan import make_plan
from tests.codegen.triton.compiling import compiled
from tests.codegen.triton.harness import Interpreter
from tests.codegen.triton.test_plans import SMALL, run
from tests.lower.test_depthwise import LAST, fused_on_a_gpu

aten = torch.ops.aten


def planned(function: Any, given: tuple[Tensor, ...], target: Target = SMALL) -> Plan:
    plan = make_plan(fused_on_a_gpu(function, *given), target)
    verify_plan(plan)
    return replace(plan, buffers=tuple(replace(b, device="cpu") for b in plan.buffers))


def operands(channels: int, width: int, taps: int, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(batch, channels, width, width).bfloat16().contiguous(memory_format=LAST)
    return x, torch.randn(channels, 1, taps, taps).bfloat16(), torch.randn(channels).bfloat16()


def settings(taps: int, step: int, channels: int) -> tuple[Any, ...]:
    return ([step] * 2, [taps // 2] * 2, [1, 1], False, [0, 0], channels)


@pytest.mark.parametrize(
    ("channels", "width", "taps", "step"), [(16, 8, 7, 1), (24, 7, 7, 1), (16, 9, 3, 2), (8, 10, 5, 1)]
)
def test_values(interpreter: Interpreter, channels: int, width: int, taps: int, step: int) -> None:
    given = operands(channels, width, taps, 4)
    rest = settings(taps, step, channels)
    (found,) = run(planned(lambda x, w, b: aten.convolution(x, w, b, *rest), given), interpreter, given)
    want = aten.convolution(*(t.double() for t in given), *rest)
    torch.testing.assert_close(found.double(), want, rtol=4e-3, atol=4e-3 * float(want.abs().max()))


@pytest.mark.parametrize(("taps", "step", "last"), [(3, 1, False), (5, 2, False), (7, 1, False), (3, 1, True)])
def test_float32_in_both_orders_of_memory(interpreter: Interpreter, taps: int, step: int, last: bool) -> None:
    given = tuple(t.float() for t in operands(12, 11, taps, 3))
    if not last:
        given = (given[0].contiguous(), *given[1:])
    rest = settings(taps, step, 12)
    (found,) = run(planned(lambda x, w, b: aten.convolution(x.erf(), w, b, *rest).sin(), given), interpreter, given)
    x, w, b = (t.double() for t in given)
    torch.testing.assert_close(found.double(), aten.convolution(x.erf(), w, b, *rest).sin(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("width", "results", "reads"), [(28, 4, 10), (14, 7, 13), (7, 7, 7)])
def test_neighbours_share_their_reads_in_registers(width: int, results: int, reads: int, tmp_path: Path) -> None:
    """Ten places of a row of the window for four elements of a 7x7 filter; a thread's sums stay in registers."""
    given = operands(192, width, 7, 64)
    plan = planned(lambda x, w, b: aten.convolution(x, w, b, *settings(7, 1, 192)), given, nvidia())
    source = max((emit(k, nvidia()) for k in plan.kernels), key=lambda s: len(s.text))
    before, loop = source.text.split("    for ")
    assert len(re.findall(r"tl\.load\(b0", loop)) == reads
    assert "tl.load(b0" not in before
    assert "evict_first" not in loop
    assert loop.count("tl.store(") == results
    ptx = compiled(source, tmp_path).asm["ptx"]
    assert "st.local" not in ptx
    assert "bar.sync" not in ptx
    wide = "v4" if results == 4 else "v2"
    assert len(re.findall(rf"ld\.global\.{wide}\.b32", ptx)) >= reads


@pytest.mark.parametrize("shape", [(64,), (6, 64), (1, 20), (20, 1)])
@pytest.mark.parametrize("size", [1, 5])
def test_sums_of_overlapping_windows(interpreter: Interpreter, shape: tuple[int, ...], size: int) -> None:
    x = torch.randn(shape)
    for dim in range(len(shape)):
        if shape[dim] >= size:

            def function(x: Tensor, dim: int = dim) -> Tensor:
                return x.unfold(dim, size, 1).sum(-1)

            (found,) = run(planned(function, (x,)), interpreter, (x,))
            torch.testing.assert_close(found, function(x))
