"""Indices that many points share are wrapped and checked once, ahead of the kernel that reads at them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lamina


def taken(compiled: Callable[..., Tensor]) -> int:
    decisions = [d for stage in compiled.record.stages if stage.name == "fuse" for d in stage.decisions]
    return sum(d.kind == "places" and d.taken for d in decisions)


def bias(scores: Tensor, table: Tensor, index: Tensor) -> Tensor:
    return torch.softmax(scores + table[index].permute(2, 0, 1), -1)


def pixels(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return x[:, :, i, j] * 3


def drawn(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    if function is bias:
        scores, table = torch.randn(8, 61, 67, generator=g), torch.randn(97, 8, generator=g)
        return scores, table, torch.randint(-97, 97, (61, 67), generator=g)
    places = [torch.randint(-40, 40, (700,), generator=g) for _ in range(2)]
    return torch.randn(3, 9, 40, 40, generator=g), *places


@pytest.mark.parametrize(("function", "count"), [(bias, 1), (pixels, 2)])
def test_values_and_gradients(function: Callable[..., Tensor], count: int) -> None:
    args = drawn(function)
    compiled = lamina.compile(function, options={"strict": True})
    leaves = [a.requires_grad_() for a in args if a.is_floating_point()]
    got, want = compiled(*args), function(*args)
    assert taken(compiled) >= count
    torch.testing.assert_close(got, want, rtol=2e-6, atol=1e-7)
    cotangent = torch.randn_like(want)
    for a, b in zip(*(torch.autograd.grad(y, leaves, cotangent) for y in (got, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_an_index_outside_is_refused() -> None:
    """Also one whose low 32 bits would be inside."""
    scores, table, index = drawn(bias)
    compiled = lamina.compile(bias)
    compiled(scores, table, index)
    for bad in (97, -98, 2**31, -(2**31), 2**32, 2**40 + 3):
        other = index.clone()
        other[60, 66] = bad
        with pytest.raises(IndexError):
            compiled(scores, table, other)


def test_the_first_error_is_reported() -> None:
    x, i, j = drawn(pixels)
    compiled = lamina.compile(pixels)
    compiled(x, i, j)
    for which, size in ((i, 40), (j, 40)):
        kept = which[650].item()
        which[650] = size
        with pytest.raises(IndexError):
            compiled(x, i, j)
        which[650] = kept
    torch.testing.assert_close(compiled(x, i, j), pixels(x, i, j))


def test_an_index_for_each_point_is_left_where_it_is() -> None:
    compiled = lamina.compile(lambda x, k: torch.gather(x * 2, 1, k) * 3)
    x, k = torch.randn(512, 64), torch.randint(0, 64, (512, 64))
    torch.testing.assert_close(compiled(x, k), torch.gather(x * 2, 1, k) * 3)
    assert taken(compiled) == 0
