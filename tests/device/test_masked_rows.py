"""Rows of attention whose keys are all masked: the kernels against their specification, compiled programs, memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina
from lamina.masked_rows.attention import kernel_for
from lamina.masked_rows.operations import fill_backward_, fill_forward_
from lamina.rewrite.rules.torch_private import CUDNN
from tests.rewrite.rules.capturing import gradients

pytestmark = pytest.mark.usefixtures("fresh")

NUMBERS = (-1e4, -1e9, -3.3e38, -math.inf)
MASKS = {
    "one": (256, 256),
    "for each batch": (2, 1, 256, 256),
    "for each head": (1, 4, 256, 256),
    "of keys": (2, 1, 1, 256),
}
CLOSE: Any = {"rtol": 3e-2, "atol": 3e-2}


def _by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / 8 + mask).softmax(-1) @ v


def _filled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / 8).masked_fill(mask < -1, -1e9).softmax(-1) @ v


def _inputs(grad: bool = True, shape: tuple[int, ...] = (2, 4, 256, 64)) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    drawn = [torch.randn(shape, generator=generator, device="cuda") for _ in range(3)]
    return [x.bfloat16().requires_grad_(grad) for x in drawn]


def _mask(shape: tuple[int, ...], number: float) -> Tensor:
    """Some keys of most rows are masked, and all of some rows', or of the second batch's only row."""
    mask = torch.zeros(shape, device="cuda")
    mask[..., 5:90] = number
    if shape[-2] == 1:
        mask[1] = number
    else:
        mask[..., 3, :] = mask[..., 200:, :] = number
    return mask.bfloat16()


def _relied_on() -> bool:
    q, k, v = _inputs()
    return kernel_for(q, k, v, 0.125) == CUDNN


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("number", NUMBERS)
def test_masked_rows_and_all_others_are_as_in_eager(number: float, name: str) -> None:
    compiled = lamina.compile(_by_hand, dynamic=False)
    inputs, mask = _inputs(), _mask(MASKS[name], number)
    found, expected = compiled(*inputs, mask), _by_hand(*inputs, mask)
    torch.testing.assert_close(found, expected, equal_nan=True, **CLOSE)
    masked = (mask <= -9900).all(-1, keepdim=True).broadcast_to(2, 4, 256, 1)
    assert masked.any()
    assert bool(found[masked.expand_as(found)].isnan().all()) == (number == -math.inf)
    (q, k, v), (eager_q, _, eager_v) = gradients(found, inputs), gradients(expected, inputs)
    torch.testing.assert_close(v, eager_v, equal_nan=True, **CLOSE)
    assert q is not None
    assert eager_q is not None
    seen = ~masked.expand_as(q)
    torch.testing.assert_close(q[seen], eager_q[seen], **CLOSE)
    if number != -math.inf:
        assert not q[~seen].any()
        without = gradients(_by_hand(*inputs, mask).masked_fill(masked, 0.0), inputs)[1]
        torch.testing.assert_close(k, without, **CLOSE)
    if _relied_on():
        ops = [
            getattr(s, "op", "") for stage in compiled.record.stages if stage.name == "plan" for s in stage.value.steps
        ]
        assert "lamina.fill_masked_rows_forward_.default" in ops
        assert "lamina.fill_masked_rows_backward_.default" in ops


@pytest.mark.parametrize("name", MASKS)
def test_filled_masks_in_training(name: str) -> None:
    inputs, mask = _inputs(), _mask(MASKS[name], -1e9)
    found, expected = lamina.compile(_filled, dynamic=False)(*inputs, mask), _filled(*inputs, mask)
    torch.testing.assert_close(found, expected, **CLOSE)
    for mine, theirs in zip(gradients(found, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("number", NUMBERS)
def test_without_gradients(number: float, name: str) -> None:
    inputs, mask = _inputs(False), _mask(MASKS[name], number)
    found = lamina.compile(_by_hand, dynamic=False)(*inputs, mask)
    torch.testing.assert_close(found, _by_hand(*inputs, mask), equal_nan=True, **CLOSE)


@pytest.mark.parametrize("keys", [256, 100])
@pytest.mark.parametrize("features", [64, 40])
@pytest.mark.parametrize("number", [None, *NUMBERS])
def test_kernels_do_what_is_specified(number: float | None, features: int, keys: int) -> None:
    _ = lamina.compile(torch.relu)(torch.ones(3, device="cuda"))  # there is a backend for this GPU
    torch.manual_seed(0)
    out = torch.randn(2, 70, 3, features, device="cuda").bfloat16().transpose(1, 2)
    value, mask = (torch.randn(s, device="cuda").bfloat16() for s in ((2, 3, keys, features), (2, 1, 70, keys)))
    if number is not None:
        mask[:, :, 7:40] = number
        mask[0, 0, 9, ::3] = -2e9
    logarithm = torch.randn(2, 3, 70, 1, device="cuda")
    gradient, tangent = torch.randn_like(value), torch.randn_like(out)
    mine, theirs = ([t.clone() for t in (out, logarithm, gradient)] for _ in range(2))
    alone = out.clone()
    rows = torch.ops.lamina.fill_masked_rows_forward_(mine[0], mine[1], mask, value)
    torch.ops.lamina.fill_masked_rows_(alone, mask, value)
    torch.ops.lamina.fill_masked_rows_backward_(mine[2], mask, rows, tangent)
    expected = fill_forward_(theirs[0], theirs[1], mask, value)
    fill_backward_(theirs[2], mask, expected, tangent)
    torch.testing.assert_close(rows, expected, equal_nan=True, rtol=1e-4, atol=1e-5)
    for one, other in zip((*mine, alone), (*theirs, theirs[0]), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, **CLOSE)


@pytest.mark.parametrize("training", [False, True])
def test_neither_mask_nor_queries_are_copied(training: bool) -> None:
    if not _relied_on():
        pytest.skip("this GPU's library has no kernel that is relied on")
    inputs = _inputs(training, (2, 8, 1024, 64))
    mask = torch.full((1024, 1024), -math.inf, device="cuda").triu(1).bfloat16()
    compiled = lamina.compile(_by_hand, dynamic=False)
    compiled(*inputs, mask)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = compiled(*inputs, mask)
    torch.cuda.synchronize()
    nbytes = found.nbytes + (2 * 8 * 1024 * 4 if training else 0)
    assert torch.cuda.max_memory_allocated() - before <= nbytes + (64 << 10)
