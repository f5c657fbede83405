"""Integers that overflow wrap around, and what is computed from them sees the wrapped value."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lamina

PATTERNS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "x + 1 > x": lambda x, y: x + 1 > x,
    "x - 1 < x": lambda x, y: x - 1 < x,
    "x + y < x": lambda x, y: x + y < x,
    "x - y > x": lambda x, y: x - y > x,
    "x * x < 0": lambda x, y: torch.where((x * x) < 0, -1, 1),
    "x * -1 > 0": lambda x, y: (x * -1 > 0) & (x < 0),
    "-x > 0": lambda x, y: (-x > 0) & (x < 0),
    "abs": lambda x, y: x.abs() < 0,
    "x * 2 // 2": lambda x, y: (x * 2) // 2 == x,
    "max": lambda x, y: torch.maximum(x + 1, x),
    "min": lambda x, y: torch.minimum(x - 1, x),
    "x + 1 - x": lambda x, y: x + 1 - x,
    "x * y / y": lambda x, y: torch.where(y != 0, (x * y) // torch.where((y == 0) | (y == -1), 1, y), x),
    "sum": lambda x, y: (x + x).sum(),
    "sum of rows": lambda x, y: (x * 3).view(8, -1).sum(-1),
    "columns": lambda x, y: (x * 3).view(8, -1).sum(0),
    "prod": lambda x, y: (x | 1).prod(),
    "cumsum": lambda x, y: (x + 1).cumsum(0),
    "cumprod": lambda x, y: (x | 1).cumprod(0),
    "square": lambda x, y: x.square() >= 0,
    "pow": lambda x, y: x**3 < x,
    "shift": lambda x, y: (x << 1) >> 1 == x,
    "hash": lambda x, y: ((x * 31 + y) * 31) ^ (x >> 3),
    "difference": lambda x, y: (x - y > 0) == (x > y),
    "clamp": lambda x, y: (x + 1).clamp(min=0),
    "sign": lambda x, y: torch.sign(x - 1),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=3),
    "midpoint": lambda x, y: (x + y) // 2,
}


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("numerics", ["fast", "eager"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_integers_wrap(dtype: torch.dtype, numerics: str) -> None:
    info = torch.iinfo(dtype)
    edges = [info.max, info.max - 1, info.min, info.min + 1, 0, 1, 5, info.max // 2 + 1, 2 ** (info.bits // 2) - 7]
    x = torch.tensor((edges * 16)[:136], dtype=dtype)  # vectors and a remainder
    y = x.flip(0)

    def together(x: Tensor, y: Tensor) -> list[Tensor]:
        return [pattern(x, y) for pattern in PATTERNS.values()]

    compiled = lamina.compile(together, options={"numerics": numerics, "strict": True})
    for name, ours, eager in zip(PATTERNS, compiled(x, y), together(x, y), strict=True):
        assert torch.equal(ours, eager), name


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", ["x + 1 > x", "x * x < 0", "x + y < x", "-x > 0"])
@pytest.mark.parametrize("simd", ["auto", "plain"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_comparisons_after_an_overflow_are_not_assumed(name: str, simd: str, dtype: torch.dtype) -> None:
    top = torch.iinfo(dtype).max
    x = torch.tensor([top, -top - 1, 5, 2 ** (torch.iinfo(dtype).bits // 2) - 7] * 8, dtype=dtype)
    ours = lamina.compile(PATTERNS[name], options={"simd": simd})(x, x)
    assert torch.equal(ours, PATTERNS[name](x, x))


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float64, torch.float32])
@pytest.mark.parametrize("value", [1, 3])
def test_sums_of_a_constant_over_fewer_elements_than_a_vector_has(dtype: torch.dtype, value: int) -> None:
    def together(*inputs: Tensor) -> list[Tensor]:
        found = []
        for x in inputs:
            filled = torch.full_like(x, value)
            found += [filled, filled.sum(), filled.cumsum(0), filled[:3].prod(), (filled * 2).amax()]
        return found

    inputs = [torch.zeros(n, dtype=dtype) for n in (1, 2, 3, 5, 7, 9, 10, 12, 15, 17, 23, 25)]
    for ours, eager in zip(lamina.compile(together)(*inputs), together(*inputs), strict=True):
        assert torch.equal(ours, eager)
