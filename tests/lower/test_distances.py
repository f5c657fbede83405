"""Distances by sums of absolute differences are eager's, as are their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lamina
from lamina.ir.loops import LibraryCall, LoopProgram
from lamina.testing import mismatch


def _near(x: Tensor, y: Tensor) -> Tensor:
    return torch.exp(-torch.cdist(x, y, p=1.0) / 8) + 1


def _calls(compiled: Any) -> list[str]:
    return [
        step.op
        for s in compiled.record.stages
        if isinstance(s.value, LoopProgram)
        for step in s.value.steps
        if isinstance(step, LibraryCall)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((45, 24), (71, 24)),
        ((3, 5, 40, 3), (3, 5, 30, 3)),
        ((2, 1, 40, 9), (4, 33, 9)),
        ((6, 0), (7, 0)),
        ((0, 3), (5, 3)),
    ],
)
def test_sums_of_absolute_differences(first: tuple[int, ...], second: tuple[int, ...], dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(first, generator=g, dtype=dtype), torch.randn(second, generator=g, dtype=dtype)
    if x.numel() and y.numel():
        y.view(-1)[:3] = x.view(-1)[:3]  # no difference: no gradient
    compiled = lamina.compile(_near, dynamic=False, options={"compare_eager": "off", "verify": True, "strict": True})
    found = []
    for run, given in ((compiled, (x, y)), (_near, (x, y)), (_near, (x.double(), y.double()))):
        leaves = [t.clone().requires_grad_() for t in given]
        result = run(*leaves)
        weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view_as(result)
        found.append([result.detach(), *torch.autograd.grad(result, leaves, weights)])
    for ours, eager, exact in zip(*found, strict=True):
        assert ours.shape == eager.shape
        assert not mismatch(ours, eager, exact)
    assert not _calls(compiled)


def test_points_that_are_no_numbers() -> None:
    x, y = torch.randn(40, 6), torch.randn(50, 6)
    x[3, 2], x[5, 1], y[7, 1], y[8, 4] = torch.nan, torch.inf, torch.inf, -torch.inf
    compiled = lamina.compile(_near, dynamic=False, options={"compare_eager": "off"})
    found = []
    for run in (compiled, _near):
        leaves = [t.clone().requires_grad_() for t in (x, y)]
        result = run(*leaves)
        found.append([result.detach(), *torch.autograd.grad(result.nan_to_num().sum(), leaves)])
    for ours, eager in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager, equal_nan=True)


@pytest.mark.parametrize("order", [0.0, 1.5, torch.inf])
def test_other_norms_are_the_librarys(order: float) -> None:
    x, y = torch.randn(40, 6), torch.randn(50, 6)
    compiled = lamina.compile(lambda x, y: torch.cdist(x, y, p=order) + 1, dynamic=False)
    torch.testing.assert_close(compiled(x, y), torch.cdist(x, y, p=order) + 1)
    assert _calls(compiled) == ["aten._cdist_forward.default"]
