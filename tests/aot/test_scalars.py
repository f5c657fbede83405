"""Floats that a function computes from integers which vary between calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import lamina

FLOATS: dict[str, Callable[[torch.Tensor, int, float], torch.Tensor]] = {
    "divisor of 0": lambda x, k, s: x / float(-k),
    "divided": lambda x, k, s: float(-k) / x,
    "more than 24 bits": lambda x, k, s: x * float(k),
    "a product of integers": lambda x, k, s: x + float(k * k),
    "halves": lambda x, k, s: x - k * 0.5,
    "beside a float": lambda x, k, s: x * (float(-k) * s),
    "added to a float": lambda x, k, s: x + (k + s),
}


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_integers_keep_their_bits_and_zeros_their_sign_as_floats(name: str, dtype: torch.dtype) -> None:
    function = FLOATS[name]
    compiled = lamina.compile(function, dynamic=True, options={"strict": True})
    for k, s in ((0, 1.5), (2**24 + 1, 1.0), (-(2**24) - 1, 2.0), (3, -2.5)):
        x = torch.tensor([1.0, 2.0, -1.0], dtype=dtype)
        expected, actual = function(x, k, s), compiled(x, k, s)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
        assert actual.signbit().equal(expected.signbit())


def test_floats_that_do_not_vary_beside_integers_that_do() -> None:
    """The value of a float argument is asked for by torch, though no symbol stands for it."""

    def f(x: torch.Tensor, k: int, s: float) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.sub(x, x, alpha=s), x**s * float(k)

    compiled = lamina.compile(f, dynamic=True)
    for k, s in ((2, 1.0), (3, 2.0), (1, 0.5), (-1, 1.5)):
        x = (torch.rand(4, 3) + 1).requires_grad_()
        for ours, eager in zip(compiled(x, k, s), f(x, k, s), strict=True):
            torch.testing.assert_close(ours, eager)
