"""Autograd's zeros without memory: in a backward graph, and as the gradient of a compiled region's output."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina


def inside(x: Tensor) -> Tensor:
    return torch.sgn(x) + x


def outside(x: Tensor) -> Tensor:
    return x.sin() * 2


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("numerics", ["fast", "eager"])
@pytest.mark.parametrize(("function", "after"), [(inside, lambda y: y), (outside, torch.sgn)])
def test_gradients(function: Callable[..., Any], after: Callable[[Tensor], Tensor], numerics: str) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(function, options={"numerics": numerics})
    x = torch.randn(5, requires_grad=True)
    for last in (after, lambda y: y, after):  # a backward that has taken other gradients before
        (found,) = torch.autograd.grad(last(compiled(x)).sum(), x)
        (wanted,) = torch.autograd.grad(last(function(x)).sum(), x)
        assert torch.allclose(found, wanted, atol=1e-6)
