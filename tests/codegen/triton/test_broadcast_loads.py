"""What a row needs beside it is laid out as the tile of rows is, where a loop goes over such tiles."""

import functools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lamina.base.target import nvidia
from lamina.codegen.triton.emit import emit
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan
from tests.codegen.triton.compiling import compiled
from tests.codegen.triton.test_plans import norm_backward, planned, run
from tests.lower.torch_private import traced


@functools.cache
def source(rows, columns):
    """The kernel that makes the rows of a layer norm's gradient, and shares of its columns' sums, on a large GPU."""
    with FakeTensorMode():
        x, w, g = (torch.empty(s, dtype=torch.bfloat16) for s in ((rows, columns), (columns,), (rows, columns)))
        graph = traced(norm_backward, (x, w, g))
    plan = make_plan(fuse(lower(graph, "test")), nvidia())
    kernel = next(k for k in plan.kernels if k.schedules[0].kind == "mixed")
    return emit(kernel, nvidia())


@pytest.mark.parametrize("columns", [96, 768])
def test_sums_of_short_rows_do_not_cross_warps_more_than_they_must(columns, tmp_path):
    made = source(50176, columns)
    head, loop = made.text.split("    for ")
    assert ("tl.zeros((" in head) == (columns == 96)  # of 768 columns each warp has its own
    assert "tl.zeros((" not in loop
    assert compiled(made, tmp_path).asm["ptx"].count("bar.sync") < 30  # 37 to 43 where the weight is a row


def test_long_rows_are_left_as_they_are():
    assert "tl.zeros((" not in source(16384, 4096).text


@pytest.mark.parametrize("shape", [(600, 100), (37, 40)])
def test_values(shape, interpreter):
    g = torch.Generator().manual_seed(0)
    x, gradient = (torch.randn(shape, generator=g) for _ in range(2))
    w = torch.randn(shape[1], generator=g)
    found = run(planned(norm_backward, x, w, gradient), interpreter, (x, w, gradient))
    wanted = norm_backward(*(t.double() for t in (x, w, gradient)))
    for mine, true in zip(found, wanted, strict=True):
        assert torch.allclose(mine.double(), true, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [96, 192, 768])
def test_sums_of_columns_take_a_share_for_each_row_only_where_warps_have_rows_of_their_own(columns):
    text = source(50176, columns).text
    (shares,) = {line.split("tl.full(")[1].split(", 0.0")[0] for line in text.splitlines() if "_acc = tl.full" in line}
    assert (shares.startswith("(1, ") or "," not in shares.rstrip(",)")) == (columns > 96)


def test_values_of_columns_that_are_added_up_at_once(interpreter):
    g = torch.Generator().manual_seed(0)
    x, gradient = (torch.randn(4800, 200, generator=g).bfloat16() for _ in range(2))
    w = torch.randn(200, generator=g).bfloat16()
    plan = planned(norm_backward, x, w, gradient)
    mixed = [k for k in plan.kernels if k.schedules[0].kind == "mixed"]
    assert [[b.size for b in k.schedules[0].blocks if b.role == "loop"] for k in mixed] == [[2]]
    found = run(plan, interpreter, (x, w, gradient))
    wanted = norm_backward(*(t.double() for t in (x, w, gradient)))
    for mine, true in zip(found, wanted, strict=True):
        assert torch.allclose(mine.double(), true, rtol=2e-2, atol=2e-2 * float(true.abs().max()))


def loss(x, labels):
    """A mean of losses that keeps what its backward needs."""
    away = x.float() - x.float().amax(1, keepdim=True)
    logarithm = away.exp().sum(1, keepdim=True).log()
    return torch.nn.functional.nll_loss(away - logarithm, labels), logarithm


def test_a_sum_over_rows_of_one_number_for_each(interpreter, tmp_path):
    """Rows are a nest of their own kind, and what they were reduced to is summed by another."""
    g = torch.Generator().manual_seed(0)
    x, labels = torch.randn(64, 1000, generator=g).bfloat16(), torch.randint(0, 1000, (64,), generator=g)
    plan = make_plan(fuse(lower(traced(loss, (x, labels)), "test")), nvidia())
    assert {s.kind for k in plan.kernels for s in k.schedules} == {"rows"}
    assert all(compiled(emit(kernel, nvidia()), tmp_path).asm["ptx"] for kernel in plan.kernels)
    for mine, true in zip(run(plan, interpreter, (x, labels)), loss(x, labels), strict=True):
        assert torch.allclose(mine, true, rtol=1e-4)
