"""Of equal values the first counts, and of several that are not numbers, whatever order the loops go in."""

from __future__ import annotations

import pytest
import torch

import lamina
from tests.codegen.test_functions import ISAS


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64])
def test_places_over_several_axes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 3, (40, 33, 65)).to(dtype)
    if dtype.is_floating_point:
        x[torch.rand(x.shape) < 0.001] = float("nan")

    def places(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        columns, rows = x.flatten(0, 1), x.flatten(1)
        return x.argmax(), columns.argmax(0), rows.argmax(1), rows.argmin(1)

    for order in ((2, 1, 0), (1, 0, 2), (0, 2, 1)):
        given = x.permute(order)
        for ours, eager in zip(lamina.compile(places)(given), places(given), strict=True):
            assert torch.equal(ours, eager)


def test_large_windows_of_turned_images() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2, 9, 17).round().transpose(2, 3)

    def pool(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.nn.functional.max_pool2d_with_indices(x, [7, 4], [1, 4], [2, 1], [3, 1], True)

    assert torch.equal(lamina.compile(pool)(x)[1], pool(x)[1])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [3, 8, 17, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64, torch.int8, torch.bfloat16])
def test_extremes_of_short_rows_with_their_places(dtype: torch.dtype, width: int, isa: str) -> None:
    torch.manual_seed(0)
    x = torch.randint(-4, 5, (64, width)).to(dtype)
    if dtype.is_floating_point:
        x[3, width // 2] = x[4, 1] = x[4, -1] = float("nan")
        x[5], x[6], x[8], x[9] = float("-inf"), float("inf"), -0.0, float("nan")
        x[7, -1], x[8, -1] = float("inf"), 0.0

    def extremes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.argmax(-1), x.argmin(-1), x.amax(-1), x.amin(-1), *x.max(-1), *x.min(-1)

    compiled = lamina.compile(extremes, options={"simd": isa, "compare_eager": "off"})
    for ours, eager in zip(compiled(x), extremes(x), strict=True):
        torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)
