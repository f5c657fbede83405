"""Approximate functions where rounding to 16 bits hides them, in this kernel or in a later one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lamina.base.target import nvidia
from lamina.ir.loops import Compute
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan
from tests.lower.torch_private import traced

HALF = torch.bfloat16


def approximated(function: Callable[..., Any], *args: torch.Tensor) -> list[bool]:
    """Of each kernel with a sigmoid, whether it may be approximate."""
    plan = make_plan(fuse(lower(traced(function, args), "test")), nvidia())
    assert plan.library_count == 0
    return [
        kernel.schedules[0].approximate
        for kernel in plan.kernels
        if any(isinstance(e, Compute) and e.op == "sigmoid" for nest in kernel.nests for e in nest.body)
    ]


@pytest.mark.parametrize("dtype", [HALF, torch.float32])
def test_parts_of_a_sum_are_rounded_when_they_are_joined(dtype: torch.dtype) -> None:
    x = torch.randn(4096, 256)
    assert approximated(lambda x: x.float().sigmoid().sum(0).to(dtype), x) == [dtype is HALF]


def test_a_use_in_full_precision_decides() -> None:
    def function(x: torch.Tensor) -> Any:
        sums = x.sigmoid().sum(0)
        return sums.bfloat16(), sums * 2

    assert approximated(function, torch.randn(4096, 256)) == [False]


def test_numbers_that_are_not_approximated_do_not_count() -> None:
    def function(x: torch.Tensor) -> Any:
        return x.sigmoid().bfloat16(), x * 2

    assert approximated(function, torch.randn(64, 256)) == [True]
    assert approximated(lambda x: (x.sigmoid().bfloat16(), x.sigmoid() * 2), torch.randn(64, 256)) == [False]
