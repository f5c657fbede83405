"""The first few elements of short rows as kernels for a GPU: values and places, in Triton's interpreter."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.ir.loops import LibraryCall
from tests.codegen.triton.harness import Interpreter
from tests.codegen.triton.on_cuda import lowered_on_cuda, planned_on_cuda
from tests.codegen.triton.test_plans import SMALL, run

RARE = torch.tensor(
    [
        [nan, 1, inf, -inf, nan, 2],
        [-inf, -inf, -inf, -inf, -inf, -inf],
        [nan, nan, nan, nan, nan, nan],
        [inf, nan, inf, inf, inf, -inf],
        [nan, inf, nan, inf, inf, -inf],
        [0.0, -0.0, -0.0, 0.0, 1, -1],
        [3, 3, 1, 1, 3, 1],
    ]
)


def first(x: Tensor, k: int, dim: int, largest: bool) -> tuple[Tensor, Tensor]:
    """What is expected: a stable sort, in which NaN is the greatest."""
    values, places = x.sort(dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k), places.narrow(dim, 0, k)


def drawn(dtype: torch.dtype, *shape: int) -> Tensor:
    """Numbers of which many are equal, as few bits make them."""
    torch.manual_seed(0)
    return torch.randn(shape).to(torch.float8_e4m3fn).to(dtype)


def check(interpreter: Interpreter, x: Tensor, k: int, dim: int = -1, largest: bool = True) -> None:
    plan = planned_on_cuda(SMALL, lambda x: torch.topk(x, k, dim, largest), x)
    assert len(plan.kernels) == 1
    assert plan.library_count == 0
    values, places = run(plan, interpreter, (x,))
    wanted, where = first(x, k, dim, largest)
    torch.testing.assert_close(values, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(places, where)
    assert places.dtype == torch.int64
    again = x.topk(k, dim, largest).values
    torch.testing.assert_close(values, again, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 4, 6])
def test_nan_infinities_zeros_and_equal_elements(interpreter: Interpreter, k: int, largest: bool) -> None:
    check(interpreter, RARE, k, largest=largest)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_types(interpreter: Interpreter, dtype: torch.dtype, largest: bool) -> None:
    check(interpreter, drawn(dtype, 70, 10), 3, largest=largest)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("shape", "dim", "k"), [((5, 7, 3), 1, 4), ((6, 40), 0, 2), ((9,), 0, 2), ((33, 64), 1, 8)])
def test_dimensions(interpreter: Interpreter, shape: tuple[int, ...], dim: int, k: int, largest: bool) -> None:
    check(interpreter, drawn(torch.float32, *shape), k, dim, largest)


def test_the_softmax_before_is_in_the_same_kernel(interpreter: Interpreter) -> None:
    def route(x: Tensor) -> Any:
        shares = x.softmax(-1)
        return shares, *shares.topk(2)

    x = torch.randn(50, 8)
    plan = planned_on_cuda(SMALL, route, x)
    assert len(plan.kernels) == 1
    for mine, right in zip(run(plan, interpreter, (x,)), route(x), strict=True):
        torch.testing.assert_close(mine, right)


def calls(k: int, *shape: int, numerics: str = "fast", dtype: torch.dtype = torch.float32) -> int:
    program = lowered_on_cuda(lambda x: x.topk(k), torch.zeros(shape, dtype=dtype), numerics=numerics)
    return sum(isinstance(s, LibraryCall) for s in program.steps)


def test_what_is_left_to_the_library() -> None:
    """Long rows, types whose elements are often equal, and all where results are to be eager's."""
    assert calls(8, 4, 64) == 0
    assert calls(8, 4, 65) == 0
    assert calls(9, 4, 1024) == 0
    assert calls(8, 4, 1025) == 1
    assert calls(2, 4, 8, numerics="eager") == 1
    for dtype in (torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool):
        assert calls(2, 4, 8, dtype=dtype) == 1
