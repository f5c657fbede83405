"""Quotients equal eager's bit for bit: by a row's scale before a rounding to 8 bits, and of any two numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

import lamina
from lamina.runtime.triton_quotients import exact_inverse, exact_quotient, exact_root

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


@triton.jit
def _all(a, b, quotients, inverses, roots, n):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    x, y = tl.load(a + i, mask=i < n, other=0.0), tl.load(b + i, mask=i < n, other=1.0)
    tl.store(quotients + i, exact_quotient(x, y), mask=i < n)
    tl.store(inverses + i, exact_inverse(y), mask=i < n)
    tl.store(roots + i, exact_root(y), mask=i < n)


def _bits(x: Tensor) -> Tensor:
    return torch.where(x.isnan(), torch.full_like(x.view(torch.int32), -1), x.view(torch.int32))


def _any(n: int) -> Tensor:
    whole = torch.randint(-(2**31), 2**31, (n,), device="cuda", dtype=torch.int64)
    return whole.to(torch.int32).view(torch.float32)


def _scaled(n: int) -> Tensor:
    return torch.exp2(torch.rand(n, device="cuda") * 130 - 65) * torch.randn(n, device="cuda").sign()


def _special(n: int) -> Tensor:
    numbers = [0.0, 1.0, 3.0, 1e-45, 1e-38, 1e-20, 1e20, 3.4e38, 16777215.0, float("inf"), float("nan")]
    powers = [2.0**k for k in (-127, -126, -101, -61, -60, -59, 59, 60, 61, 125, 126, 127)]
    table = torch.tensor([s * x for x in numbers + powers for s in (1, -1)], device="cuda")
    return table[torch.randint(0, len(table), (n,), device="cuda")]


def _ordinary(n: int) -> Tensor:
    return torch.randn(n, device="cuda").relu()


@pytest.mark.parametrize("numbers", [_any, _scaled, _special, _ordinary])
def test_every_bit_is_the_division_s(numbers: Callable[[int], Tensor]) -> None:
    """Quotients, reciprocals and roots of four numbers at once equal torch's: signs of zeros and subnormals too."""
    torch.manual_seed(0)
    n = 1 << 24
    a, b = numbers(n), numbers(n)
    got = [torch.empty_like(a) for _ in range(3)]
    _all[(n // 1024,)](a, b, *got, n)
    for name, ours, right in zip(("a / b", "1 / b", "root"), got, (a / b, 1.0 / b, b.sqrt()), strict=True):
        assert torch.equal(_bits(ours), _bits(right)), name


def test_every_mantissa() -> None:
    """All numbers of some exponents, as divisors and under roots."""
    n = 1 << 23
    a = torch.randn(n, device="cuda")
    for exponent in (0, 1, 2, 26, 67, 126, 127, 128, 186, 187, 188, 250, 251, 252, 253, 254):
        b = (torch.arange(n, device="cuda") + (exponent << 23)).to(torch.int32).view(torch.float32)
        got = [torch.empty_like(a) for _ in range(3)]
        _all[(n // 1024,)](a, b, *got, n)
        for ours, right in zip(got, (a / b, 1.0 / b, b.sqrt()), strict=True):
            assert torch.equal(_bits(ours), _bits(right)), exponent
