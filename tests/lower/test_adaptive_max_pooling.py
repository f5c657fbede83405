"""Adaptive maxima whose windows divide the image are windows of one size; others are ATen's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina
from lamina.ir.loops import LibraryCall


def _pooled(x: Tensor, size: Any) -> tuple[Tensor, Tensor]:
    values, places = F.adaptive_max_pool2d(x * 0.5, size, return_indices=True)
    return values * 2, places


def _in_kernels(compiled: Any) -> bool:
    """Of what was lowered in this process: stored graphs are not lowered again."""
    programs = [s.value for s in compiled.record.stages if s.name == "lower" and s.value is not None]
    return not any(isinstance(step, LibraryCall) for p in programs for step in p.steps)


def _run(function: Any, x: Tensor, size: Any) -> list[Tensor]:
    leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    values, places = function(leaf, size)
    weights = torch.arange(1.0, values.numel() + 1).to(x.dtype).view_as(values)
    return [values.detach(), places, *torch.autograd.grad(values, leaf, weights)]


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "size", "kernels"),
    [
        ((2, 3, 28, 21), 7, True),
        ((3, 15, 10), (5, 2), True),
        ((2, 5, 6, 9), (None, 3), True),
        ((1, 4, 4, 4), 1, True),
        ((2, 3, 13, 11), 7, False),
        ((2, 3, 48, 48), 6, False),
        ((2, 3, 3, 3), 6, False),
        ((0, 3, 4, 4), 2, False),
    ],
)
def test_maxima_places_and_gradients_are_eagers(
    shape: tuple[int, ...], size: Any, kernels: bool, dtype: torch.dtype
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    if x.numel() > 60:
        x.view(-1)[7], x.view(-1)[8], x.view(-1)[40] = torch.nan, torch.nan, torch.inf
        x.view(-1)[50:60] = -torch.inf
    for image in (x, x.to(memory_format=torch.channels_last) if x.dim() == 4 else x, x.flip(-1).mT.contiguous().mT):
        compiled = lamina.compile(_pooled, dynamic=False, options={"compare_eager": "off"})
        for ours, eager in zip(_run(compiled, image, size), _run(_pooled, image, size), strict=True):
            assert torch.equal(ours.nan_to_num(9), eager.nan_to_num(9))
            assert torch.equal(ours.isnan(), eager.isnan())
        assert [t.stride() for t in compiled(image, size)] == [t.stride() for t in _pooled(image, size)]
        assert _in_kernels(compiled) or not kernels


def test_sizes_that_are_not_known_and_errors_are_eagers() -> None:
    compiled = lamina.compile(_pooled, dynamic=True)
    for side in (28, 14, 30):
        x = torch.randn(2, 3, side, side)
        for ours, eager in zip(compiled(x, 7), _pooled(x, 7), strict=True):
            assert torch.equal(ours, eager)
    for bad in (torch.ones(4, 4), torch.ones(1, 2, 4, 4, dtype=torch.long)):
        raised = []
        for function in (_pooled, lamina.compile(lambda x, size: F.adaptive_max_pool2d(x, size))):
            with pytest.raises(RuntimeError) as problem:
                function(bad, 2) if function is not _pooled else F.adaptive_max_pool2d(bad, 2)
            raised.append(str(problem.value).splitlines()[0])
        assert raised[0] == raised[1]
