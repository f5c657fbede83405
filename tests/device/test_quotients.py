"""Quotients by a row's scale before a rounding to 8 bits: equal to eager's for every scale."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lamina

EXTREME = [1.0, 0.37, 1e-6, 1e-30, 1e30, 1e-42, 3e38, 0.0, -2.5, float("inf"), 2.0**-64, 2.0**-101, 2.0**101, 7.1 / 127]


def rounded(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale).round().clamp(-127, 126).to(torch.int8)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


def test_scales_far_from_one() -> None:
    scale = torch.tensor(EXTREME, device="cuda")[:, None]
    finite = scale.where(scale.isfinite(), torch.ones_like(scale))
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(len(EXTREME), 1024, generator=generator, device="cuda") * 60 * finite
    x[:, :40] = (torch.arange(-20, 20, device="cuda") + 0.5) * finite
    x[:, 40:44] = torch.tensor([float("inf"), -float("inf"), 1e-39, 0.0], device="cuda")
    defined = (x / scale).isfinite() | (x / scale).isinf()
    ours = lamina.compile(rounded, dynamic=False, options={"strict": True})(x, scale)
    assert torch.equal(ours[defined], rounded(x, scale)[defined])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_random_numbers(dtype: torch.dtype) -> None:
    """Ten million quotients each, by the rows' own maxima: half-way values are met by the thousand."""
    generator = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(2048, 5120, generator=generator, device="cuda").to(dtype).float()
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    assert torch.equal(lamina.compile(rounded, dynamic=False, options={"strict": True})(x, scale), rounded(x, scale))
