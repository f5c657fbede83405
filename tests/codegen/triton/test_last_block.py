"""Reductions in parts joined in the same launch by the last program: which are, their values, their machine code."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.base.target import nvidia
from lamina.codegen.triton.emit import emit
from lamina.errors import InvalidIR
from lamina.ir.last_block import paired_axes
from lamina.ir.loops import Load, Store
from lamina.ir.plan import Block, GpuSchedule, Kernel
from lamina.ir.plan_verify import verify_plan
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.gpu_last_block import with_last_block
from lamina.schedule.plan import make_plan
from lamina.testing import judge, tensors
from tests.codegen.triton.compiling import compiled
from tests.codegen.triton.harness import Interpreter
from tests.codegen.triton.test_plans import planned, run
from tests.lower.torch_private import traced

H200 = nvidia()
BF16 = torch.bfloat16

torch.manual_seed(1)

CASES: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "columns": (lambda x: x.sum(0), torch.randn(1024, 200)),
    "columns of an odd height": (lambda x: x.sum(0), torch.randn(1031, 24)),
    "columns of images": (lambda x: x.sum((0, 2)), torch.randn(110, 3, 28, 24)),
    "columns of each image": (lambda x: x.sum(1), torch.randn(3, 4096, 32)),
    "variance of columns": (lambda x: x.var(0), torch.randn(1024, 40) + 3),
    "everything": (lambda x: x.sum(), torch.randn(33000) + 1),
    "variance of everything": (lambda x: x.var(), torch.randn(64, 1024) + 30),
    "two results": (lambda x: (x.sum(0) * 2, x.amax(0)), torch.randn(2048, 24)),
}


@pytest.mark.parametrize("name", CASES)
def test_joined_in_the_same_launch(interpreter: Interpreter, name: str) -> None:
    function, x = CASES[name]
    plan = planned(function, x)
    assert plan.kernel_count == 1
    (kernel,) = plan.kernels
    assert [isinstance(s, GpuSchedule) and s.last_block for s in kernel.schedules] == [False, True]
    assert any("one launch" in d.reason for d in plan.decisions)
    ours = run(plan, interpreter, (x,))
    for mine, theirs, right in zip(ours, tensors(function(x)), tensors(function(x.double())), strict=True):
        assert not judge(mine, theirs, right)


def test_schedules_that_are_tried_keep_the_values(interpreter: Interpreter) -> None:
    """Tiles and warps change for both nests together; those that the second nest cannot follow are no candidates."""
    function, x = CASES["columns of each image"]
    plan = planned(function, x)
    (kernel,) = plan.kernels
    given = _schedules(kernel)[0]
    *others, columns = given.blocks
    firsts = [replace(given, warps=8), replace(given, blocks=(*others, replace(columns, size=16)))]
    tried = [schedules for first in firsts if (schedules := with_last_block(kernel.nests, first)) is not None]
    assert len(tried) == 2
    (images, part), *_ = (b.axes for b in others)
    apart = (Block((images,), 1, "grid"), Block((part,), 2, "grid"), *others[1:], columns)
    assert with_last_block(kernel.nests, replace(given, blocks=apart)) is not None
    together = (replace(others[0], size=2), *others[1:], columns)
    assert with_last_block(kernel.nests, replace(given, blocks=together)) is None
    for schedules in tried:
        other = replace(plan, kernels=(replace(kernel, schedules=schedules),))
        verify_plan(other)
        (ours,) = run(other, interpreter, (x,))
        torch.testing.assert_close(ours, x.sum(1), rtol=1e-5, atol=1e-4)


def test_results_that_something_else_reads_on_rows_stay_apart() -> None:
    """A join that goes on with all points of the rows is too much for one program."""
    plan = planned(lambda x: x - x.sum(), torch.randn(300, 500))
    kinds = [tuple(s.last_block for s in k.schedules if isinstance(s, GpuSchedule)) for k in plan.kernels]
    assert (False, True) in kinds
    assert plan.kernel_count == 2


def test_a_buffer_that_others_still_read_is_not_written() -> None:
    plan = planned(CASES["columns"][0], CASES["columns"][1])
    first, second = plan.kernels[0].nests
    assert paired_axes(first, second) is not None
    read = next(e.buffer for e in first.body if isinstance(e, Load))
    body = tuple(replace(e, buffer=read) if isinstance(e, Store) else e for e in second.body)
    assert paired_axes(first, replace(second, body=body)) is None


def test_plans_with_a_join_that_comes_first_are_refused() -> None:
    plan = planned(CASES["everything"][0], CASES["everything"][1])
    (kernel,) = plan.kernels
    turned = replace(kernel, schedules=tuple(replace(s, last_block=not s.last_block) for s in _schedules(kernel)))
    with pytest.raises(InvalidIR, match="only the second of two nests"):
        verify_plan(replace(plan, kernels=(turned,)))


def _schedules(kernel: Kernel) -> tuple[GpuSchedule, ...]:
    return tuple(s for s in kernel.schedules if isinstance(s, GpuSchedule))


LARGE: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "column sum": (lambda x: x.sum(0), (16384, 8192)),
    "column variance": (lambda x: x.var(0), (16384, 8192)),
    "full variance": (lambda x: x.var(), (16384, 8192)),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_ones_compile(name: str, tmp_path: Path) -> None:
    function, shape = LARGE[name]
    plan = make_plan(fuse(lower(traced(function, [torch.empty(shape, dtype=BF16)]), "large")), H200)
    (kernel,) = plan.kernels
    source = emit(kernel, H200)
    ((nbytes, zero),) = source.workspace
    assert zero
    made = compiled(source, tmp_path)
    counted = re.findall(r"atom\S*add\S*", made.asm["ptx"])
    assert len(counted) == 1
    assert ".acq_rel" in counted[0]
    assert ".gpu" in counted[0]
    assert "ld.global.cg" in made.asm["ptx"]
    assert int(nbytes.evaluate({})) == 4 * (1 if name.startswith("full") else -(-8192 // _across(kernel)))


def _across(kernel: Kernel) -> int:
    return _schedules(kernel)[1].blocks[-1].size


def test_products_are_not_joined_with_what_reads_them() -> None:
    """Their tiles are the tensor cores': joining each with its rows' softmax took seven times as long (an H200)."""
    kernel = planned(*CASES["columns"]).kernels[0]
    given = _schedules(kernel)[0]
    assert with_last_block(kernel.nests, given) is not None
    assert with_last_block(kernel.nests, replace(given, kind="product")) is None
