"""Rows of factors: joined where the result is the same, left where it could be another."""

import pytest
import torch

from lamina.rewrite.numbers import fold_factors
from lamina.rewrite.verify import verify_fx

from .test_passes import aten, count, graph_of


def folded(function, *inputs):
    before = graph_of(function, *inputs)
    after = fold_factors(before)
    verify_fx(after, "test")
    torch.testing.assert_close(after(*inputs), before(*inputs), equal_nan=True)
    return before, after


X = torch.tensor([0.0, -0.0, 1.0, -3.5, float("inf"), float("nan"), 1e38])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 * 3 + 0,
        lambda x: 2 * (3.0 * x) + 0,
        lambda x: torch.mul(torch.mul(x, 2), 3) + 0,
        lambda x: (x * 2.5 * -2 * 4).relu(),
        lambda x: x * 0.5 * 0.25,
    ],
)
def test_factors_in_a_row_become_one(function):
    _, after = folded(lambda x: (function(x),), X)
    assert count(after, aten.mul.Tensor) == 1


@pytest.mark.parametrize(
    ("dtype", "joined"), [(torch.float32, 2), (torch.bfloat16, 2), (torch.float16, 2), (torch.float64, 1)]
)
def test_factors_whose_product_kernels_cannot_hold_stay_apart(dtype, joined):
    _, after = folded(lambda x: (x * 1e20 * 1e20,), (X * 1e-30).to(dtype))
    assert count(after, aten.mul.Tensor) == joined


def test_signed_zeros_stay():
    _, after = folded(lambda x: (x * 2 * 3 + 0,), X)
    assert count(after, aten.add.Tensor) == 1
    assert torch.equal(torch.signbit(after(X)[0][:2]), torch.signbit((X * 2 * 3 + 0)[:2]))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.uint8])
def test_integers_wrap_around(dtype):
    x = torch.tensor([1, 2, 3, 100, 120]).to(dtype)
    _, after = folded(lambda x: (x * 7 * 11 * 13,), x)
    assert count(after, aten.mul.Tensor) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 1e30 * 1e-30,  # overflows in between
        lambda x: x * 1e30 * 1e300,  # the product does not fit
        lambda x: x * 0.0 * 2.0,
        lambda x: x * 1e-30 * 1e-30,
        lambda x: x + 1 + 2,  # rounds in between
    ],
)
def test_what_could_differ_stays(function):
    before, after = folded(lambda x: (function(x),), X)
    assert after is before


def test_a_step_that_is_used_twice_stays():
    def f(x):
        y = x * 2
        return (y * 3, y.exp())

    before, after = folded(f, X)
    assert after is before


def test_a_factor_that_changes_the_dtype_is_no_factor():
    before, after = folded(lambda x: (x * 2.5 * 2,), torch.arange(4))
    assert count(after, aten.mul.Tensor) == count(before, aten.mul.Tensor) == 2
