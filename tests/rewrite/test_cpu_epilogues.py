"""ReLU is applied to convolutions of a CPU in place where nothing else needs what comes before it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina

W, B = torch.randn(6, 4, 3, 3), torch.randn(6)
V = torch.randn(6, 4, 3, 3)


def plain(x: Tensor) -> Tensor:
    return F.relu(F.conv2d(x, W, B, padding=1))


def strided(x: Tensor) -> Tensor:
    return torch.relu(torch.conv2d(x, W, None, 2, 1))


def added(x: Tensor) -> Tensor:
    y = x.sin()
    return (F.conv2d(x, W, B, padding=1) + torch.cat((y, y[:, :2]), 1)).relu()


def both(x: Tensor) -> Tensor:
    return torch.relu(F.conv2d(x, W, B, padding=1) + F.conv2d(x, V, padding=1))


def read_twice(x: Tensor) -> Tensor:
    y = F.conv2d(x, W, B)
    return y.relu() + y.sin()


def returned(x: Tensor) -> tuple[Tensor, Tensor]:
    y = F.conv2d(x, W, B)
    return y, y.relu()


def broadcast(x: Tensor) -> Tensor:
    return (F.conv2d(x, W, B) + x.mean()).relu()


def epilogues(function: Callable[..., object], x: Tensor, **kwargs: bool) -> int:
    """How many there are; values, strides and gradients are eager's."""
    torch._dynamo.reset()
    compiled = lamina.compile(function, options={"strict": True, "verify": True})
    x = x.clone().requires_grad_(kwargs.get("training", False))
    ours, eager = compiled(x), function(x)
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4, check_stride=True)
    return sum(d.kind == "library epilogue" for d in compiled.record.decisions())


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("function", [plain, strided, added, both])
def test_relu_is_applied_in_place(function: Callable[[Tensor], Tensor], layout: torch.memory_format) -> None:
    assert epilogues(function, torch.randn(1, 4, 8, 8).contiguous(memory_format=layout)) == 1


@pytest.mark.parametrize("function", [read_twice, returned, broadcast])
def test_what_something_else_needs_stays(function: Callable[[Tensor], object]) -> None:
    assert epilogues(function, torch.randn(2, 4, 8, 8)) == 0


def test_other_dtypes_and_gradients_are_left_alone() -> None:
    assert epilogues(lambda x: F.relu(F.conv2d(x, W.double())), torch.randn(2, 4, 8, 8).double()) == 0
    assert epilogues(plain, torch.randn(2, 4, 8, 8), training=True) == 0


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("function", [plain, added, both])
def test_what_is_no_finite_number_stays(function: Callable[[Tensor], Tensor], layout: torch.memory_format) -> None:
    x = torch.randn(2, 4, 8, 8)
    x[0, 0, 0, 0], x[1, 1, 4, 4], x[1, 2, 1, 1] = float("nan"), float("inf"), -float("inf")
    x = x.contiguous(memory_format=layout)
    compiled = lamina.compile(function, options={"strict": True})
    expected = function(x)
    assert expected.isnan().any()
    assert expected.isinf().any()
    torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-4, equal_nan=True, check_stride=True)


def test_parameters_may_be_expanded() -> None:
    weight, bias = W[:1].expand(6, -1, -1, -1), B[:1].expand(6)
    assert epilogues(lambda x: F.relu(F.conv2d(x, weight, bias)), torch.randn(2, 4, 8, 8)) == 1
