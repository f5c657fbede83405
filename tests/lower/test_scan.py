"""Running combinations along one dimension."""

from __future__ import annotations

import pytest
import torch

import lamina

from .harness import check, outcome
from .samples import check_samples


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


def test_scans_with_places_are_left_to_the_library() -> None:
    found = outcome(lambda x: x.cummax(0), [torch.randn(4, 3)])
    assert not found.complaints
    assert found.library == (("aten.cummax.default", "a scan that carries a place along with the value"),)
