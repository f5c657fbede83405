"""A norm and the rotation of its rows' parts are one nest, whatever the parts; what cannot be coarsened stays apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.ir.loops import Nest
from tests.schedule.test_fuse import fused, nests


def rotary(x: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w
    low, high = y.chunk(2, -1)
    return y * cos + torch.cat([-high, low], -1) * sin


def rotary_backward(x: Tensor, w: Tensor, cos: Tensor, sin: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    s = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    turned = g * sin
    low, high = turned.chunk(2, -1)
    d = g * cos + torch.cat([high, -low], -1)
    own = d * w
    return own * s - x * s**3 * (own * x).mean(-1, keepdim=True), (d * x * s).sum((0, 1))


def rotary_of_slices_backward(cos: Tensor, sin: Tensor, g: Tensor) -> Tensor:
    """The gradients of the slices are rows of zeros but for a half."""
    x = torch.zeros_like(g).requires_grad_()
    low, high = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    (found,) = torch.autograd.grad(x * cos + torch.cat([-high, low], -1) * sin, x, g)
    return found


def rotary_of_angles_backward(angles: Tensor, g: Tensor) -> Tensor:
    """Cosines and sines are made of halves as well."""
    both = torch.cat([angles, angles], -1)
    return rotary_of_slices_backward(both.cos(), both.sin(), g)


def padded(x: Tensor) -> Tensor:
    """The second half is padding; the first is made by a loop of its own length, over which it adds up."""
    y = x.exp()
    return torch.nn.functional.pad(y / y.sum(-1, keepdim=True), (0, x.shape[-1]))


def thirds(x: Tensor) -> Tensor:
    y = x / x.abs().amax(-1, keepdim=True)
    a, b, c = y.chunk(3, -1)
    return torch.cat([a * b, b * c, c * a], -1)


def any_and_all(x: Tensor) -> Tensor:
    hit = ((x > 0.5).any(-1, keepdim=True) & (x < 9).all(-1, keepdim=True)) | (x.amin(-1, keepdim=True) > x)
    a, b = (hit.float() * x.prod(-1, keepdim=True)).chunk(2, -1)
    return torch.cat([a - b, b + a], -1)


ROWS, TABLE = (3, 4, 32), (4, 32)
CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "rotary": (rotary, (ROWS, (32,), TABLE, TABLE)),
    "rotary backward": (rotary_backward, (ROWS, (32,), TABLE, TABLE, ROWS)),
    "rotary of slices backward": (rotary_of_slices_backward, (TABLE, TABLE, ROWS)),
    "rotary of angles backward": (rotary_of_angles_backward, ((4, 16), ROWS)),
    "padded": (padded, ((5, 16),)),
    "thirds": (thirds, ((5, 48),)),
    "any and all": (any_and_all, ((5, 32),)),
}


@pytest.mark.parametrize("name", CASES)
def test_one_nest(name: str) -> None:
    function, shapes = CASES[name]
    torch.manual_seed(0)
    result = fused(function, *(torch.randn(s) for s in shapes))
    assert nests(result) == 1
    (nest,) = (s for s in result.program.steps if isinstance(s, Nest))
    # Parts that are copied from a part of the gradient are computed where they are read: three quarters of the time.
    assert max(a.extent.const for a in nest.axes) == (32 if name == "rotary of slices backward" else 16)


def test_a_variance_is_not_coarsened() -> None:
    """Its two results have no simple sum of parts."""

    def function(x: Tensor) -> Tensor:
        y = x / x.var(-1, keepdim=True)
        a, b = y.chunk(2, -1)
        return torch.cat([a - b, b + a], -1)

    assert nests(fused(function, torch.randn(4, 32))) == 2
