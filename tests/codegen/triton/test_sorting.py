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
    assert calls(4, 16) == 0
    assert calls(4, 17) == 1
    assert calls(17, 4, dim=0) == 1
    assert calls(4, 32, values=True) == 0
    assert calls(4, 33, values=True) == 1
    assert calls(32, 4, values=True, dim=0) == 0
    assert calls(33, 4, values=True, dim=0) == 1
    assert calls(4, 8, numerics="eager") == 1
    for dtype in (torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool):
        assert calls(4, 8, dtype=dtype) == 1
        assert calls(4, 8, dtype=dtype, values=True) == 0


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
