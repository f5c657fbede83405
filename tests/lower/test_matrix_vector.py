"""Products with one row or one column are nests on a GPU, and library calls elsewhere and otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lamina.ir.loops import LibraryCall, LoopProgram, Nest, Reduce
from lamina.ir.loops_interp import run_program
from lamina.ir.loops_verify import verify_program
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse

from .torch_private import traced

A, B, X = torch.randn(3, 1, 8), torch.randn(3, 8, 5), torch.randn(8)

PRODUCTS: dict[str, Callable[..., Tensor]] = {
    "mm": lambda a, b, x: a[0] @ b[0],
    "mm, one column": lambda a, b, x: b[0].t() @ a[0].t(),
    "addmm": lambda a, b, x: torch.addmm(x[:5], a[0], b[0]),
    "mv": lambda a, b, x: torch.mv(b[0].t(), x),
    "dot": lambda a, b, x: torch.dot(x, x * 2) + torch.vdot(x, x),
    "bmm": lambda a, b, x: torch.bmm(a, b),
    "bmm, one column": lambda a, b, x: torch.bmm(b.transpose(1, 2), a.transpose(1, 2)),
    "heads that share a matrix": lambda a, b, x: torch.bmm(a.repeat(2, 1, 1), b.repeat_interleave(2, 0)),
    "two in a row": lambda a, b, x: torch.bmm(torch.bmm(a, b).softmax(-1), b.transpose(1, 2)),
}


def on_a_gpu(function: Callable[..., Tensor], inputs: list[Tensor], numerics: str = "fast") -> LoopProgram:
    graph = traced(function, inputs)
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            node.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return lower(graph, "test", numerics)


def calls(program: LoopProgram) -> int:
    return sum(isinstance(s, LibraryCall) for s in program.steps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PRODUCTS)
def test_one_row_is_a_nest(name: str, dtype: torch.dtype) -> None:
    inputs = [x.to(dtype) for x in (A, B, X)]
    lowered = on_a_gpu(PRODUCTS[name], inputs)
    assert calls(lowered) == 0
    for program in (lowered, fuse(lowered).program):
        verify_program(program)
        here = replace(program, buffers=tuple(replace(b, device="cpu") for b in program.buffers))
        (found,) = run_program(here, [x.clone() for x in inputs])
        close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
        torch.testing.assert_close(found, PRODUCTS[name](*inputs), **close)


def test_several_rows_other_types_and_other_orders_of_adding_are_the_librarys() -> None:
    inputs = [A, B, X]
    assert calls(on_a_gpu(lambda a, b, x: torch.bmm(b.transpose(1, 2), b), inputs)) == 1
    assert calls(on_a_gpu(PRODUCTS["bmm"], [x.double() for x in inputs])) == 1
    assert calls(on_a_gpu(PRODUCTS["bmm"], inputs, "eager")) == 1
    assert calls(lower(traced(PRODUCTS["bmm"], inputs), "test")) == 1


def test_few_columns_of_wide_rows_are_a_nest_where_the_library_may_not_round_them() -> None:
    x, w = torch.randn(6, 256).bfloat16(), torch.randn(8, 256).bfloat16()

    def router(x: Tensor, w: Tensor) -> Tensor:
        return x.float() @ w.float().t()

    program = on_a_gpu(router, [x, w])
    assert calls(program) == 0
    here = replace(program, buffers=tuple(replace(b, device="cpu") for b in program.buffers))
    torch.testing.assert_close(run_program(here, [x, w])[0], router(x, w))
    nests = [s for s in program.steps if isinstance(s, Nest)]
    assert [len(n.axes) for n in nests if any(isinstance(e, Reduce) for e in n.body)] == [3]
    assert calls(on_a_gpu(lambda x, w: x @ w.t(), [x, w])) == 1
