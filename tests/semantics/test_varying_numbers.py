"""Numbers that vary between calls: eager refuses some for their type or their range, and rounds some to infinities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import lamina

Function = Callable[[torch.Tensor, Any], torch.Tensor]


def _calls(function: Function, x: torch.Tensor, numbers: tuple[Any, ...]) -> list[Any]:
    found: list[Any] = []
    for number in numbers:
        written = x.clone()
        try:
            found.append(function(written, number))
        except Exception as error:
            found.append(type(error))
        found.append(written)
    return found


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("front", ["dynamo", "own"])
@pytest.mark.parametrize(
    ("dtype", "numbers", "function"),
    [
        (torch.int64, (2, 3, 2.5, 3.5), lambda x, k: x.mul_(k)),
        (torch.uint8, (2.5, 0.5, 3.5), lambda x, k: x.add_(k)),
        (torch.bool, (2, 3, 5), lambda x, k: x.mul_(k)),
        (torch.bool, (2.5, 0.5, 0.25), lambda x, k: F.threshold(x, k, k)),
        (torch.float16, (0.5, 0.25, 65519.0, 1e5, 2.0), lambda x, k: F.hardshrink(x, abs(k))),
        (torch.float16, (0.5, 0.25, 65519.0, 1e5, 2.0), lambda x, k: F.threshold(x, k, k)),
        (torch.float16, (2, 3, 65536, 10**6), lambda x, k: x.masked_fill_(x > 0, k)),
        (torch.float16, (2, 3, 65536), lambda x, k: x**k),
        (torch.float16, (0.5, 0.25, 0.125, 65519.0, -1e5), lambda x, k: x + k),
        (torch.bfloat16, (0.5, 0.25, 0.125, 3.4e38, -1e39), lambda x, k: k - x),
        (torch.int32, (2, 3, 2**31, -(2**40)), lambda x, k: torch.addcmul(x, x, x, value=k)),
        (torch.uint8, (2, 3, 256, 1), lambda x, k: x.__setitem__(0, k)),
    ],
)
def test_numbers_that_a_dtype_does_not_hold(
    dtype: torch.dtype, numbers: tuple[Any, ...], function: Function, front: str
) -> None:
    torch._dynamo.reset()
    x = torch.tensor([0.0, 1.0, 3.0, 5.0]).to(dtype)
    wanted = _calls(function, x, numbers)
    found = _calls(lamina.compile(function, options={"capture": front}), x, numbers)
    for one, other in zip(found, wanted, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, equal_nan=True)
        else:
            assert one is other


@pytest.mark.parametrize("number", [1e5, -1e5, 65519.0, 2049.1])
@pytest.mark.parametrize(
    "function", [lambda x, k: x + k, lambda x, k: x - k, lambda x, k: k - x, lambda x, k: torch.add(x, k, alpha=1)]
)
def test_numbers_beyond_a_half_type_are_infinities_in_sums(function: Function, number: float) -> None:
    torch._dynamo.reset()
    x = torch.tensor([0.0, 1.0, -65504.0, 65504.0], dtype=torch.float16)
    torch.testing.assert_close(lamina.compile(lambda x: function(x, number))(x), function(x, number), equal_nan=True)


@pytest.mark.parametrize("alpha", [float("inf"), float("-inf"), float("nan")])
def test_elu_keeps_zeros_whatever_its_slope_is(alpha: float) -> None:
    x = torch.tensor([0.0, -0.0, 1.0, -1.0] * 9)
    wanted = F.elu(x, alpha)
    found = torch.compile(lambda x: F.elu(x, alpha), backend="lamina")(x)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    assert torch.equal(found[:2].signbit(), wanted[:2].signbit())
