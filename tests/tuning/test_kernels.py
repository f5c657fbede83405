"""What is known of a kernel before it is timed: its bytes, and memory that it can be run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.ir.index import Axis, Expr, Loaded, Size, as_expr
from lamina.ir.loops import Buffer, Check, Compute, Constant, Index, Load, Nest
from lamina.ir.loops_interp import run_nest
from lamina.ir.plan import Kernel, KernelCall, Plan
from lamina.tuning.checked_values import checks_hold, places_hold
from lamina.tuning.kernels import memory, moved_bytes, sizes_known, untimeable
from tests.tuning.plans import gpu_plan

KIB = 1024


def launches(plan: Plan, kernel: Kernel) -> list[KernelCall]:
    return [step for step in plan.steps if isinstance(step, KernelCall) and step.kernel == kernel.name]


def bytes_of(plan: Plan) -> int:
    kernel, step = plan.kernels[0], plan.steps[0]
    assert isinstance(step, KernelCall)
    dtypes = {f"b{k}": d for k, d in enumerate(kernel.dtypes)}
    return moved_bytes(kernel.nests, step, dtypes, plan.buffer_map())


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        (lambda x, b: x + b, (torch.zeros(64, 256), torch.zeros(256)), 64 * KIB * 2 + KIB),
        (lambda x: x.softmax(-1), (torch.zeros(64, 256),), 64 * KIB * 2),
        (lambda x: x + x.t(), (torch.zeros(64, 64),), 2 * 16 * KIB),
        (lambda x: x.sum(-1), (torch.zeros(256, 64, dtype=torch.bfloat16),), 32 * KIB + KIB // 2),
        (lambda x: x[:, :32] * 2, (torch.zeros(256, 256),), 2 * 32 * KIB),
    ],
)
def test_each_element_counts_once(function: Callable[..., Any], arguments: tuple[Tensor, ...], expected: int) -> None:
    assert bytes_of(gpu_plan(function, *arguments)) == expected


def test_a_gather_counts_the_rows_it_reads_not_the_table() -> None:
    plan = gpu_plan(
        lambda ids, table: F.embedding(ids, table), torch.zeros(64, dtype=torch.int64), torch.zeros(9000, 256)
    )
    assert bytes_of(plan) == 64 * 8 + 2 * 64 * KIB


def test_a_gather_of_more_rows_than_the_table_has_counts_the_table() -> None:
    ids = torch.zeros(4096, dtype=torch.int64)
    assert (
        bytes_of(gpu_plan(lambda i, t: F.embedding(i, t), ids, torch.zeros(8, 256))) == 32 * KIB + 8 * KIB + 4096 * KIB
    )


def test_indices_are_made_up_within_their_bounds() -> None:
    plan = gpu_plan(lambda i, t: F.embedding(i, t), torch.zeros(5000, dtype=torch.int64), torch.zeros(77, 8))
    step, nests = plan.steps[0], plan.kernels[0].nests
    assert isinstance(step, KernelCall)
    assert untimeable(nests, [step]) == ""
    held = memory(step, nests, plan.buffer_map(), torch.Generator().manual_seed(0))
    ids = next(t for t in held.values() if t.dtype == torch.int64)
    assert (int(ids.min()), int(ids.max())) == (0, 76)


def test_checks_of_numbers_that_cannot_be_made_up_are_not_run() -> None:
    def function(x: Tensor, table: Tensor) -> Tensor:
        return F.embedding((x * 50).long(), table)

    plan = gpu_plan(function, torch.zeros(64), torch.zeros(77, 8))
    assert any(untimeable(kernel.nests, launches(plan, kernel)) for kernel in plan.kernels)


def test_classes_that_are_compared_and_not_looked_up_can_be_zero() -> None:
    plan = gpu_plan(F.cross_entropy, torch.zeros(64, 1000), torch.zeros(64, dtype=torch.int64))
    checked = [k for k in plan.kernels if any(isinstance(e, Check) for nest in k.nests for e in nest.body)]
    assert checked
    assert not any(untimeable(kernel.nests, launches(plan, kernel)) for kernel in checked)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x.gather(1, i) * 2,
        lambda x, i: torch.zeros(64, 77).scatter_add(1, i, x[:, :50]),
        lambda x, i: torch.zeros(77, 77).index_add(0, i[:, 0], x),
        lambda x, i: x[i[0]] + 1,
        lambda x, i: x.index_select(0, i[:, 1]).exp(),
    ],
)
def test_places_are_made_up_whatever_their_errors_are(function: Callable[..., Any]) -> None:
    """Whatever the class of the error, checks that ranges prove for made-up values do not keep a kernel from the clock;
    the values then pass them when the nest is run.
    """
    plan = gpu_plan(function, torch.randn(64, 77), torch.randint(0, 60, (64, 50)))
    looked_up = [k for k in plan.kernels if any(isinstance(e, Check) for n in k.nests for e in n.body)]
    assert looked_up
    for kernel in looked_up:
        assert untimeable(kernel.nests, launches(plan, kernel)) == ""
        step = next(s for s in plan.steps if isinstance(s, KernelCall) and s.kernel == kernel.name)
        held = memory(step, kernel.nests, plan.buffer_map(), torch.Generator().manual_seed(0))
        flat = {f"b{k}": _flat(held[name]) for k, name in enumerate(step.buffers)}
        sizes = {f"s{k}": e.const for k, e in enumerate(step.sizes)}
        for nest in kernel.nests:
            run_nest(nest, flat, sizes)


def _flat(tensor: Tensor) -> Tensor:
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)


LOADED = Load("v0", "b0", (as_expr(Axis("i0", as_expr(64))),), "int64")
FLOAT = Load("v0", "b0", (as_expr(Axis("i0", as_expr(64))),), "float32")
FROM_ZERO = Compute("v7", "sub", ("v1", "v0"), "int64")
SHORT = Compute("v7", "cast", ("v0",), "int8")
ZERO, FIVE = Constant("v1", 0, "int64"), Constant("v2", 5, "int64")
LEAST, MOST = Compute("v3", "ge", ("v0", "v1"), "bool"), Compute("v4", "lt", ("v0", "v2"), "bool")
BOTH = Compute("v5", "and", ("v3", "v4"), "bool")


@pytest.mark.parametrize(
    ("body", "highest", "holds"),
    [
        ((LOADED, ZERO, FIVE, LEAST, MOST, BOTH), 5, True),
        ((LOADED, ZERO, FIVE, LEAST, MOST, BOTH), 6, False),
        ((LOADED, ZERO, FIVE, LEAST, MOST, BOTH, Compute("v6", "not", ("v5",), "bool")), 5, False),
        ((FLOAT, ZERO, FIVE, LEAST, MOST, BOTH), 5, False),
        ((LOADED, ZERO, FROM_ZERO, Compute("v8", "ge", ("v7", "v1"), "bool")), 5, False),
        ((LOADED, ZERO, FROM_ZERO, Compute("v8", "le", ("v7", "v1"), "bool")), 5, True),
        # What wraps around in eight bits is in no range.
        ((LOADED, ZERO, FIVE, SHORT, Compute("v8", "lt", ("v7", "v7"), "bool")), 500, False),
        ((LOADED, ZERO, SHORT, Compute("v8", "ge", ("v7", "v1"), "bool")), 500, False),
        ((LOADED, ZERO, SHORT, Compute("v8", "ge", ("v7", "v1"), "bool")), 100, True),
        # One side of an alternative may be unknown.
        ((replace(FLOAT, out="f"), Compute("u", "gt", ("f", "f"), "bool"), LOADED, ZERO, LEAST,
          Compute("v8", "or", ("u", "v3"), "bool")), 5, True),
        ((replace(FLOAT, out="f"), Compute("u", "gt", ("f", "f"), "bool"), LOADED, ZERO, LEAST,
          Compute("v8", "and", ("u", "v3"), "bool")), 5, False),
    ],
)  # fmt: skip
def test_ranges_decide_whether_checks_hold(body: tuple[Any, ...], highest: int, holds: bool) -> None:
    nest = Nest("checked", (Axis("i0", as_expr(64)),), (*body, Check(body[-1].out, "no")))
    assert checks_hold(nest, highest, {}) is holds


def _reading(*body: Any, place: str, mask: str | None = None, bound: int | Expr = 5) -> Nest:
    at = as_expr(Loaded(place, as_expr(bound)))
    return Nest("reads", (Axis("i0", as_expr(64)),), (*body, Load("read", "b1", (at,), "float32", mask)))


MASK = Load("m", "b2", (as_expr(Axis("i0", as_expr(64))),), "bool")
PART = Compute("f1", "mul", ("f", "f"), "float32")
AT = Compute("t", "cast", ("f1",), "int64")
UP, DOWN = Compute("c0", "maximum", ("t", "v1"), "int64"), Compute("c1", "minimum", ("c0", "v9"), "int64")
FOUR = Constant("v9", 4, "int64")
INSIDE = (
    Compute("a", "ge", ("t", "v1"), "bool"),
    Compute("b", "lt", ("t", "v2"), "bool"),
    Compute("both", "and", ("a", "b"), "bool"),
)
STEPPED = Compute("x", "sub", ("v0", "v2"), "int64")
FLOATS = replace(FLOAT, out="f")


@pytest.mark.parametrize(
    ("nest", "holds"),
    [
        (_reading(LOADED, place="v0"), True),
        (_reading(LOADED, place="v0", bound=4), False),
        (_reading(LOADED, place="v0", bound=as_expr(Size("s0"))), True),
        # Of a place less five a mask from memory proves nothing, and one of this nest does.
        (_reading(LOADED, FIVE, STEPPED, place="x"), False),
        (_reading(LOADED, FIVE, STEPPED, MASK, place="x", mask="m"), False),
        (_reading(LOADED, ZERO, FIVE, STEPPED, Compute("a", "ge", ("x", "v1"), "bool"), place="x", mask="a"), True),
        (_reading(LOADED, ZERO, FIVE, STEPPED, Compute("a", "le", ("v1", "x"), "bool"), place="x", mask="a"), True),
        (_reading(LOADED, ZERO, FIVE, STEPPED, Compute("a", "ge", ("v0", "v1"), "bool"), place="x", mask="a"), False),
        # Places made of floats are anywhere, unless they are brought inside, or only read there.
        (_reading(FLOATS, PART, AT, place="t"), False),
        (_reading(FLOATS, PART, AT, ZERO, FOUR, UP, DOWN, place="c1"), True),
        (_reading(FLOATS, PART, AT, ZERO, FOUR, UP, DOWN, place="c0"), False),
        (_reading(FLOATS, PART, AT, ZERO, FIVE, *INSIDE, place="t", mask="both"), True),
        (_reading(FLOATS, PART, AT, ZERO, FIVE, *INSIDE, place="t", mask="b"), False),
        # What no memory decides is as in the program.
        (_reading(Index("f", as_expr(Axis("i0", as_expr(64))), "float32"), PART, AT, place="t"), True),
    ],
)
def test_places_are_in_their_buffers_whatever_is_made_up(nest: Nest, holds: bool) -> None:
    assert places_hold(nest, 5, {"s0": 5}) is holds


def test_a_kernel_whose_places_another_has_checked_is_not_run_on_made_up_masks() -> None:
    """Of the places that are read, those that are none come with a mask, as another kernel has made it."""
    nest = _reading(LOADED, FIVE, STEPPED, MASK, place="x", mask="m")
    call = KernelCall("reads", "reads", ("ids", "table", "masks"), (), (), (nest,))
    assert untimeable((nest,), [call]) == "it reads or writes at places that cannot be made up"


def test_divisors_are_not_made_up() -> None:
    axis = Axis("i0", as_expr(64))
    body = (
        Load("v0", "b0", (as_expr(axis),), "int64"),
        Constant("v1", 0, "int64"),
        Compute("v2", "ne", ("v0", "v1"), "bool"),
        Check("v2", "division by zero", "ZeroDivisionError"),
    )
    assert not checks_hold(Nest("divided", (axis,), body), 5, {})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "bool", "int8", "complex64"])
def test_scratch_memory_holds_small_finite_numbers(dtype: str) -> None:
    plan = gpu_plan(lambda x: x + 1, torch.zeros(64, 8))
    step, nests = plan.steps[0], plan.kernels[0].nests
    assert isinstance(step, KernelCall)
    shape, strides = (as_expr(40), as_expr(8)), (as_expr(16), as_expr(1))
    buffers = {name: Buffer(name, dtype, shape, strides) for name in step.buffers}
    for tensor in memory(step, nests, buffers, torch.Generator().manual_seed(0)).values():
        wide = tensor.to(torch.complex128)
        assert tensor.stride() == (16, 1)
        assert float(wide.abs().max()) < 2
        assert bool(torch.isfinite(wide.abs()).all())


def test_sizes_that_change_are_noticed() -> None:
    plan = gpu_plan(lambda x: x + 1, torch.zeros(64, 8))
    step = plan.steps[0]
    assert isinstance(step, KernelCall)
    assert sizes_known(step, plan.buffer_map())


def test_nests_of_one_launch_count_together() -> None:
    plan = gpu_plan(
        lambda *tensors: tuple(t.sigmoid() for t in tensors), *(torch.zeros(n) for n in (8192, 65536, 24576))
    )
    assert len(plan.kernels[0].nests) == 3
    assert bytes_of(plan) == 2 * 4 * (8192 + 65536 + 24576)
