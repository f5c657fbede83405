"""Short rows in order in kernels for a GPU: values and places, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lamina.ir.loops import LibraryCall
from tests.codegen.triton.harness import Interpreter
from tests.codegen.triton.on_cuda import lowered_on_cuda, planned_on_cuda
from tests.codegen.triton.test_plans import SMALL, run
from tests.lower.test_sorting import assert_same, rows

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_types(interpreter: Interpreter, dtype: torch.dtype, descending: bool) -> None:
    x = rows(dtype, 6)
    plan = planned_on_cuda(SMALL, lambda x: torch.sort(x, dim=1, descending=descending, stable=True), x)
    assert len(plan.kernels) == 1
    assert plan.library_count == 0
    wanted = torch.sort(x, dim=1, descending=descending, stable=True)
    for mine, theirs in zip(run(plan, interpreter, (x,)), wanted, strict=True):
        assert_same(mine, theirs)


@pytest.mark.parametrize(("shape", "dim"), [((5, 7, 3), 1), ((6, 40), 0), ((9,), 0), ((33, 10), 1)])
def test_dimensions(interpreter: Interpreter, shape: tuple[int, ...], dim: int) -> None:
    x = rows(torch.float32, 4, 300).flatten()[: torch.Size(shape).numel()].reshape(shape)
    plan = planned_on_cuda(SMALL, lambda x: torch.sort(x, dim=dim, stable=True), x)
    assert plan.library_count == 0
    for mine, theirs in zip(run(plan, interpreter, (x,)), torch.sort(x, dim=dim, stable=True), strict=True):
        assert_same(mine, theirs)


def calls(
    *shape: int, numerics: str = "fast", dtype: torch.dtype = torch.float32, values: bool = False, dim: int = -1
) -> int:
    given = torch.zeros(shape, dtype=dtype)
    function = lambda x: torch.sort(x, dim)[0] if values else torch.sort(x, dim)  # noqa: E731
    program = lowered_on_cuda(function, given, numerics=numerics)
    return sum(isinstance(s, LibraryCall) for s in program.steps)


def test_what_is_left_to_the_library() -> None:
    """Long rows, places of elements that are often equal, and all floats where results are to be eager's."""
    for length in (16, 17, 32, 33, 1024):
        for values in (False, True):
            assert calls(4, length, values=values) == 0
            assert calls(length, 4, values=values, dim=0) == 0
    assert calls(4, 1025) == calls(4, 1025, values=True) == 1
    assert calls(4, 33, dtype=torch.float64) == 1  # keys of 64 bits have no room for places
    assert calls(4, 33, dtype=torch.float64, values=True) == 0
    assert calls(4, 8, numerics="eager") == 1
    for dtype in (torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool):
        assert calls(4, 8, dtype=dtype) == 1
        assert calls(4, 8, dtype=dtype, values=True) == 0


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.bool], ids=str)
def test_types_of_tiles(interpreter: Interpreter, dtype: torch.dtype, descending: bool) -> None:
    """Rows that a program sorts in a tile, with many equal elements, NaNs and zeros of both signs, stably."""
    x = rows(dtype, 40, 5)
    plan = planned_on_cuda(SMALL, lambda x: torch.sort(x, dim=1, descending=descending, stable=True), x)
    assert plan.library_count == 0
    wanted = torch.sort(x, dim=1, descending=descending, stable=True)
    for mine, theirs in zip(run(plan, interpreter, (x,)), wanted, strict=True):
        assert_same(mine, theirs)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.int64], ids=str)
def test_values_of_tiles(interpreter: Interpreter, dtype: torch.dtype, descending: bool) -> None:
    x = rows(dtype, 70, 5)
    plan = planned_on_cuda(SMALL, lambda x: torch.sort(x, dim=1, descending=descending)[0], x)
    assert plan.library_count == 0
    wanted = torch.sort(x, dim=1, descending=descending)[0]
    assert torch.equal(run(plan, interpreter, (x,))[0].nan_to_num(7), wanted.nan_to_num(7))


@pytest.mark.parametrize(
    ("shape", "dim"), [((5, 40, 3), 1), ((70, 5), 0), ((129,), 0), ((2, 64, 2, 3), 1), ((3, 1000), -1)]
)
def test_dimensions_of_tiles(interpreter: Interpreter, shape: tuple[int, ...], dim: int) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul(9).round()
    function = lambda x: torch.sort(x.abs() * 2, dim=dim, stable=True)[0].square() + x.sin()  # noqa: E731
    plan = planned_on_cuda(SMALL, function, x)
    assert plan.library_count == 0
    torch.testing.assert_close(run(plan, interpreter, (x,))[0], function(x))


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize(("shape", "dim", "k"), [((6, 90), -1, 12), ((90, 6), 0, 64), ((3, 1000), 1, 1000)])
@pytest.mark.parametrize("largest", [False, True])
def test_the_first_of_a_row_in_tiles(
    interpreter: Interpreter, shape: tuple[int, ...], dim: int, k: int, largest: bool
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))

    def function(x: Tensor) -> tuple[Tensor, ...]:
        values, places = torch.topk(x.exp(), k, dim, largest)
        return values, places, values * 2

    plan = planned_on_cuda(SMALL, function, x)
    assert plan.library_count == 0
    for mine, theirs in zip(run(plan, interpreter, (x,)), function(x), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_row_in_tiles_beside_its_sum(interpreter: Interpreter) -> None:
    """What is in order is gone over again: by a running sum, a sum and a gather."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        values, places = torch.sort(x.sigmoid(), -1, descending=True)
        return values.cumsum(-1) < 20.0, values.sum(-1), x.gather(-1, places), values.flip(-1)

    x = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    plan = planned_on_cuda(SMALL, function, x)
    assert plan.library_count == 0
    for mine, theirs in zip(run(plan, interpreter, (x,)), function(x), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_what_reads_other_tensors_along_short_rows_is_left_apart(interpreter: Interpreter) -> None:
    """Rows side by side are one kernel; of neighbours in memory each thread would read one after the other."""

    def function(x: Tensor, y: Tensor, dim: int) -> Tensor:
        return torch.sort(x, dim)[0] * y + y.sin()

    x, y = torch.randn(40, 8), torch.randn(40, 8)
    for dim, count in ((1, 2), (0, 1)):
        given = (x, y) if dim else (x.reshape(8, 40), y.reshape(8, 40))
        plan = planned_on_cuda(SMALL, lambda x, y, dim=dim: function(x, y, dim), *given)
        assert len(plan.kernels) == count
        torch.testing.assert_close(run(plan, interpreter, given)[0], function(*given, dim))


def test_what_is_around_it_is_in_the_same_kernel(interpreter: Interpreter) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.sort(x.abs() * 2, 1)[0].square() + 1

    x = torch.randn(3, 8, 50)
    plan = planned_on_cuda(SMALL, function, x)
    assert len(plan.kernels) == 1
    torch.testing.assert_close(run(plan, interpreter, (x,))[0], function(x))
