"""Padding, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import lamina

from .harness import check, outcome
from .samples import DTYPES, check_samples

aten = torch.ops.aten


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "name",
    [
        *(f"nn.functional.pad.{mode}" for mode in ("constant", "reflect", "replicate", "replicate_negative")),
        "constant_pad_nd",
    ],
)
def test_samples(name: str, dtype: torch.dtype) -> None:
    check_samples(name, dtype)


X = torch.randn(2, 3, 6, 7)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.pad(x, (1, 2, -1, 3), value=1.5),
        lambda x: F.pad(x, (-1, -2)),
        lambda x: F.pad(x, (2, 3, 1, 0), mode="reflect"),
        lambda x: F.pad(x, (2, 9, 1, 0), mode="replicate"),
        lambda x: F.pad(x > 0, (1, 1), value=True),
    ],
    ids=["constant", "crop", "reflect", "replicate", "bool"],
)
def test_modes(fn: Callable[..., Any], symbolic: bool) -> None:
    check(fn, X, symbolic=symbolic)


@pytest.mark.parametrize("mode", ["reflection", "replication"])
def test_gradients(mode: str) -> None:
    for rank, pad in ((1, [2, 3]), (2, [2, 3, 1, 0]), (3, [1, 2, 3, 1, 1, 1])):
        x = X if rank == 2 else X[:, :, 0] if rank == 1 else X[None]
        backward = getattr(aten, f"{mode}_pad{rank}d_backward")
        forward = getattr(aten, f"{mode}_pad{rank}d")
        check(lambda x, p=pad, f=forward, b=backward: b(f(x, p) * 2, x, p), x)


def test_nothing_to_pad() -> None:
    check(lambda x: F.pad(x, (2, 1), value=3.0), torch.zeros(3, 0))


def test_a_fractional_fill_of_integers_is_left_to_the_library() -> None:
    found = outcome(lambda x: F.pad(x, (1, 1), value=1.5), [torch.arange(4)])
    assert not found.complaints
    assert found.library


@pytest.mark.parametrize("symbolic", [False, True])
def test_padding_that_only_products_read(symbolic: bool) -> None:
    def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        padded = F.pad(x.exp(), (1, 2, 3, 4), value=0.5)
        return padded @ w, padded.t() @ padded

    found = outcome(both, [torch.randn(5, 6), torch.randn(9, 4)], symbolic)
    assert not found.complaints, found.complaints
    assert found.nests == 6  # the values, two sides of each dimension, and the exponentials


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize(
    ("shape", "pad"),
    [
        ((3, 7, 9), (2, 3)),
        ((2, 3, 7, 9), (2, 1, 0, 3)),
        ((2, 3, 7, 9), (-1, 2, 1, 1)),
        ((2, 3, 6, 7, 9), (1, 2, 3, 0, 2, 2)),
        ((2, 2, 40, 33), (8, 8, 5, 5)),
    ],
)
def test_gradients_of_edges(mode: str, shape: tuple[int, ...], pad: tuple[int, ...]) -> None:
    """Every element adds up what was copied from it, corners from all their dimensions."""

    def padded(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, pad, mode=mode) * 2

    x = torch.randn(shape, requires_grad=True)
    want = padded(x)
    cotangent = torch.randn_like(want)
    got = lamina.compile(padded, options={"strict": True})(x)
    (ours,), (eager,) = (torch.autograd.grad(y, x, cotangent) for y in (got, want))
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)
