"""Running combinations along one dimension."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import lamina

from .harness import check
from .samples import check_samples


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp"])
def test_samples(name: str, dtype: torch.dtype) -> None:
    check_samples(name, dtype)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_along_each_dimension(dim: int, symbolic: bool) -> None:
    x = torch.rand(3, 5, 7)
    check(lambda x: (x.cumsum(dim), x.cumprod(dim), x.logcumsumexp(dim)), x, symbolic=symbolic)


def test_types_and_scalars() -> None:
    check(lambda x: (x.cumsum(0), x.cumprod(1), x.cumsum(0, dtype=torch.float32)), torch.randint(0, 5, (3, 4)).int())
    check(lambda x: x.cumsum(0), torch.rand(9) > 0.5)
    check(lambda x: (x.cumsum(0), x.cumprod(-1), x.logcumsumexp(0)), torch.tensor(2.0))


def test_a_scan_over_flattened_dimensions_stays_one_loop() -> None:
    x = torch.randn(4, 6)
    function = lambda x: (x + 1).reshape(-1).cumsum(0).reshape(6, 4).t().contiguous() * 2  # noqa: E731
    compiled = lamina.compile(function, dynamic=True, options={"strict": True, "verify": True})
    torch.testing.assert_close(compiled(x), function(x))


SPECIAL = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan")]


def rows(dtype: torch.dtype, length: int, special: tuple[float, ...]) -> Tensor:
    """Rows with equal elements, the second half with special ones, in all orders."""
    g = torch.Generator().manual_seed(length)
    x = torch.randint(-3, 4, (24, length), generator=g).double()
    if dtype.is_floating_point:
        where = torch.rand(12, length, generator=g) < 0.2
        drawn = torch.tensor(special, dtype=torch.float64)[torch.randint(len(special), (12, length), generator=g)]
        x[12:] = torch.where(where, drawn, x[12:])
    return x.abs().to(dtype) if dtype in (torch.uint8, torch.bool) else x.to(dtype)


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "int8", "uint8", "int64", "bool"])
def test_extremes_with_places(name: str) -> None:
    """Along rows of whole vectors and less, and along columns: the last of equal ones, signs of zeros, NaN for good."""
    dtype = getattr(torch, name)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return (*x.cummax(1), *x.cummin(1), *x.cummax(0), *x.t().cummin(-1))

    for length in (1, 7, 16, 41):
        x = rows(dtype, length, (0.0, -0.0, 1.0, float("inf"), float("-inf"), float("nan")))
        compiled = lamina.compile(lambda x: function(x), options={"strict": True})
        for ours, eager in zip(compiled(x), function(x), strict=True):
            assert ours.dtype == eager.dtype
            assert torch.equal(ours.isnan(), eager.isnan())
            assert torch.equal(ours.nan_to_num(7), eager.nan_to_num(7))
            if dtype.is_floating_point:
                assert torch.equal(ours.signbit(), eager.signbit() & ~eager.isnan() | ours.signbit() & eager.isnan())


def test_extremes_of_scalars_and_their_gradients() -> None:
    check(lambda x: (*x.cummax(0), *x.cummin(-1)), torch.tensor(2.0))
    check(lambda x: (*x.cummax(1), *x.cummin(0)), torch.randn(5, 9, requires_grad=True))
    check(lambda x: (*x.cummax(1), *x.cummin(0)), torch.randn(5, 9), symbolic=True)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", ["cumprod", "logcumsumexp"])
@pytest.mark.parametrize("length", [5, 16, 100])
def test_what_another_grouping_would_change(name: str, length: int) -> None:
    """Products that overflow before a zero, zeros with signs, and sums of powers far apart are eager's."""
    g = torch.Generator().manual_seed(0)
    plain = torch.randn(24, length, generator=g)
    wide = plain * 300 if name == "logcumsumexp" else 10 ** (plain * 18)
    compiled = lamina.compile(lambda x: (getattr(x, name)(1), getattr(x, name)(0)), options={"strict": True})
    for x in (plain, wide, rows(torch.float32, length, SPECIAL), rows(torch.float32, length, (0.0, -0.0, -2.5))):
        for dtype, dim in itertools.product((torch.float32, torch.float64), (1, 0)):
            found = compiled(x.to(dtype))[1 - dim]
            eager = getattr(x.to(dtype), name)(dim)
            torch.testing.assert_close(found, eager, rtol=3 * torch.finfo(dtype).eps, atol=1e-15, equal_nan=True)
            if name == "cumprod":
                assert torch.equal(found.signbit() | eager.isnan(), eager.signbit() | eager.isnan())


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_places_of_extremes_so_far_of_what_is_computed_in_half_precision(name: str) -> None:
    """An element is the greatest so far where both are the numbers that would be stored: none was, but the first."""
    x = torch.randn(4, 300, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)

    def places(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = getattr(torch, name)(x * 0.9, 1)[1]
        return found

    assert torch.equal(lamina.compile(places, dynamic=False)(x), places(x))
