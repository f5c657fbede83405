"""Distances of points as products: as far from the exact ones as eager's, which are products too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lamina

OPTIONS = {"compare_eager": "off"}


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    return torch.exp(-torch.cdist(x, y))


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_distances_are_as_exact_as_eagers(batch: tuple[int, ...], dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(*batch, n, 5, generator=g, dtype=torch.float64).to(dtype) for n in (37, 61))
    y[..., :9, :] = x[..., :9, :]  # of distance zero, but for what rounding leaves
    compiled = lamina.compile(_kernel, dynamic=False, options=OPTIONS)
    errors = []
    for function in (compiled, _kernel):
        a, b = (t.clone().requires_grad_() for t in (x, y))
        result = function(a, b)
        result.sum().backward()
        wide = [t.double() for t in (x, y)]
        exact = torch.exp(-(wide[0].unsqueeze(-2) - wide[1].unsqueeze(-3)).square().sum(-1).sqrt())
        far = torch.ones_like(exact, dtype=torch.bool)
        far[..., :9, :9] = ~torch.eye(9, dtype=torch.bool)
        errors.append(((result - exact).abs() * far).max().item())
        assert (result - exact).abs().max() < 1e-2
        assert a.grad is not None
        assert a.grad.isfinite().all()
    assert errors[0] <= 2 * errors[1] + torch.finfo(dtype).eps


def test_infinities_odd_strides_and_unknown_sizes_are_eagers() -> None:
    compiled = lamina.compile(_kernel, dynamic=True, options=OPTIONS)
    for n, m in ((30, 41), (52, 29), (3, 2)):
        g = torch.Generator().manual_seed(n)
        x, y = torch.randn(7, n, generator=g).T, torch.randn(m, 14, generator=g)[:, ::2]
        x[1, 2], y[1, 3] = torch.nan, torch.inf
        torch.testing.assert_close(compiled(x, y), _kernel(x, y), equal_nan=True)
        assert compiled(x, y).stride() == _kernel(x, y).stride()
