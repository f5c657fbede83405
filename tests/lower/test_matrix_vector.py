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
LARGE = [torch.randn(3, 1, 40), torch.randn(3, 40, 30), torch.randn(40)]

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
    assert calls(lower(traced(PRODUCTS["bmm"], LARGE), "test")) == 1


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


COMPUTED: dict[str, Callable[..., Tensor]] = {
    "mm": lambda a, b, x: a[0] @ b[0].exp(),
    "mm, one column": lambda a, b, x: b[0].exp().t() @ a[0].t(),
    "addmm": lambda a, b, x: torch.addmm(x[:5], a[0], b[0].exp()),
    "mv": lambda a, b, x: torch.mv(b[0].exp().t(), x),
    "dot": lambda a, b, x: torch.dot(x, x.exp()),
    "bmm": lambda a, b, x: torch.bmm(a, b.exp()),
    "contraction": lambda a, b, x: torch.einsum("bnd,b->nd", b.softmax(-1), x[:3]),
    "column and row": lambda a, b, x: torch.bmm(a.transpose(1, 2), b[:, :1]),
    "column, row and more": lambda a, b, x: torch.addmm(x[:5], x[:, None], b[0, :1]),
}
"""Products whose matrix is computed beside them, or that are no sums."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", COMPUTED)
def test_products_of_computed_matrices_are_nests_on_a_cpu(name: str, dtype: torch.dtype) -> None:
    inputs = [x.to(dtype) for x in (A, B, X)]
    program = lower(traced(COMPUTED[name], inputs), "test")
    assert calls(program) == 0
    for one in (program, fuse(program).program):
        verify_program(one)
        (found,) = run_program(one, [x.clone() for x in inputs])
        close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
        torch.testing.assert_close(found, COMPUTED[name](*inputs), **close)


def test_matrices_in_memory_are_the_librarys_on_a_cpu() -> None:
    """A nest would read them as fast at best. So are those that the library makes or that are moved."""
    assert calls(lower(traced(lambda a, b, x: torch.mv(b.flatten(0, 1), x[:30].exp()), LARGE), "test")) == 1
    assert calls(lower(traced(lambda a, b, x: torch.mv(b[0] @ b[1].t(), x), LARGE), "test")) == 2
    assert calls(lower(traced(lambda a, b, x: torch.bmm(a, torch.cat([b, b], 2)), LARGE), "test")) == 1
    assert calls(lower(traced(COMPUTED["mv"], LARGE), "test", "eager")) == 1


def test_small_matrices_are_multiplied_without_a_call_on_a_cpu() -> None:
    """A library call takes longer: three layers of 16 at batch size 1 took 1.5 times as long as eager."""

    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(torch.nn.functional.linear(x, w, b))
        return x

    inputs = [torch.randn(1, 16), torch.randn(16, 16), torch.randn(16)]
    lowered = lower(traced(program, inputs), "test")
    assert calls(lowered) == 0
    torch.testing.assert_close(run_program(lowered, inputs)[0], program(*inputs))
