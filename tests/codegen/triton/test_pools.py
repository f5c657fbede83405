"""Max pooling's kernels for a GPU in Triton's interpreter, against eager, and what the compiler makes of them."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf, nan, prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from lamina.base.target import Target, nvidia
from lamina.codegen.triton.emit import emit
from lamina.ir.plan import GpuSchedule, Plan
from lamina.ir.plan_verify import verify_plan
from lamina.lower.to_loops import lower
from lamina.rewrite.pool_places import max_pool2d_offsets_backward, max_pool2d_with_offsets
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan
from tests.codegen.triton.compiling import compiled
from tests.codegen.triton.harness import Interpreter
from tests.codegen.triton.test_plans import SMALL, run
from tests.lower.torch_private import traced

aten = torch.ops.aten
BF16 = torch.bfloat16
LAST, FIRST = torch.channels_last, torch.contiguous_format
STEM: tuple[Any, ...] = ([3, 3], [2, 2], [1, 1], [1, 1], False)
WINDOWS: list[tuple[Any, ...]] = [
    STEM,
    ([2, 2], [2, 2], [0, 0], [1, 1], False),
    ([3, 2], [1, 2], [1, 0], [2, 1], True),
    ([3, 3], [2, 2], [0, 1], [1, 1], True),
]


def planned(function: Any, given: tuple[Tensor, ...], target: Target = SMALL) -> Plan:
    """The plan of a function of tensors like these on a GPU."""
    with FakeTensorMode():
        fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda") for t in given]
        plan = make_plan(fuse(lower(traced(function, fakes), "t")), target)
    verify_plan(plan)
    return replace(plan, buffers=tuple(replace(b, device="cpu") for b in plan.buffers))


def image(shape: tuple[int, ...], form: torch.memory_format) -> Tensor:
    torch.manual_seed(0)
    x = torch.randn(shape).to(BF16)
    x[0, 0] = -inf
    x[-1, -1, 2:5, 3:6] = nan
    return x.contiguous(memory_format=form)


@pytest.mark.parametrize("form", [LAST, FIRST], ids=str)
@pytest.mark.parametrize("window", WINDOWS)
def test_forward_and_backward(interpreter: Interpreter, window: tuple[Any, ...], form: torch.memory_format) -> None:
    x = image((2, 8, 8, 12), form)
    y, offsets = max_pool2d_with_offsets(x, *window, torch.uint8)
    ours = run(planned(lambda x: max_pool2d_with_offsets(x, *window, torch.uint8), (x,)), interpreter, (x,))
    assert torch.equal(ours[1], offsets)
    torch.testing.assert_close(ours[0], y, equal_nan=True, rtol=0, atol=0)

    def backward(g: Tensor, h: Tensor, x: Tensor, o: Tensor) -> Any:
        return max_pool2d_offsets_backward(g + h, x, *window, o)

    g, h = (torch.randint(-9, 9, y.shape).to(BF16).contiguous(memory_format=form) for _ in range(2))
    given = g, h, x, offsets.contiguous(memory_format=form)
    (found,) = run(planned(backward, given), interpreter, given)
    torch.testing.assert_close(found, backward(*given), rtol=0, atol=0)


def stem(g: Tensor, h: Tensor, x: Tensor, w: Tensor, b: Tensor, mean: Tensor, scale: Tensor, o: Tensor) -> Any:
    """The backward of batch norm, ReLU and max pooling, whose result is read in two places."""
    columns = [t.view(-1, 1, 1) for t in (w.float(), b.float(), mean, scale)]
    r = torch.relu(((x.float() - columns[2]) * columns[3] * columns[0] + columns[1]).to(x.dtype))
    p = max_pool2d_offsets_backward(g + h, x, *STEM, o)
    t = aten.threshold_backward(p, r, 0)
    return aten.native_batch_norm_backward(t, x, w, None, None, mean, scale, True, 1e-5, [True, True, True])


def stem_operands(shape: tuple[int, ...], form: torch.memory_format, dtype: torch.dtype) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    images, channels, high, wide = shape
    x = torch.randn(shape).to(dtype).contiguous(memory_format=form)
    pooled = images, channels, high // 2, wide // 2
    g, h = (torch.randn(pooled).to(dtype).contiguous(memory_format=form) for _ in range(2))
    w, b = torch.rand(channels).to(dtype), torch.randn(channels).to(dtype)
    mean, scale = torch.randn(channels) / 9, torch.rand(channels) + 0.5
    return g, h, x, w, b, mean, scale, max_pool2d_with_offsets(x, *STEM, torch.uint8)[1]


@pytest.mark.parametrize("form", [LAST, FIRST], ids=str)
def test_with_a_norm_whose_sums_read_it(interpreter: Interpreter, form: torch.memory_format) -> None:
    given = stem_operands((8, 16, 8, 16), form, torch.float32)
    ours = run(planned(stem, given), interpreter, given)
    for mine, right in zip(ours, stem(*given), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", [LAST, FIRST], ids=str)
def test_threads_take_as_much_of_a_stem_as_registers_hold(tmp_path: Path, form: torch.memory_format) -> None:
    """Eight points of four elements each, in wide accesses where the channels come last."""
    with FakeTensorMode():
        given = stem_operands((128, 64, 112, 112), form, BF16)
    plan = planned(stem, given, nvidia())
    assert plan.kernel_count == 2
    for k in plan.kernels:
        first = k.schedules[0]
        assert isinstance(first, GpuSchedule)
        assert prod(b.size for b in first.blocks) == 8 * 32 * first.warps
        text = compiled(emit(k, nvidia()), tmp_path).asm["ptx"]
        if form is LAST:
            assert not re.search(r"ld\.global\S*\.b16", text)
