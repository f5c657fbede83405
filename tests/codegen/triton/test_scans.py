"""Scans on a GPU: whole or in parts, along rows and columns, in Triton's interpreter against eager and float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.base.target import nvidia
from lamina.ir.loops import Scan
from lamina.ir.plan import Plan
from lamina.ir.plan_verify import verify_plan
from lamina.lower.to_loops import lower
from lamina.schedule import scan_chunks
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan
from tests.codegen.triton.harness import Interpreter
from tests.codegen.triton.test_plans import run
from tests.lower.torch_private import traced

FEW = nvidia("few", 8, approximate=True)
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
_ROUNDINGS = 32
"""Errors of one rounding of the largest result that others may have: the interpreter adds up tiles one by one."""
INF, NAN = float("inf"), float("nan")


def numbers(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def planned(function: Callable[..., Any], *arguments: Tensor) -> Plan:
    program = lower(traced(function, arguments), "test")
    program = replace(program, buffers=tuple(replace(b, device="cuda:0") for b in program.buffers))
    plan = make_plan(fuse(program), FEW)
    verify_plan(plan)
    return plan


def scans(plan: Plan) -> int:
    """Kernels with scans."""
    return sum(any(isinstance(e, Scan) for n in k.nests for e in n.body) for k in plan.kernels)


def check(interpreter: Interpreter, function: Callable[..., Any], *arguments: Tensor) -> Plan:
    """The plan, whose results are those of eager, and near what float64 gives."""
    plan = planned(function, *arguments)
    got, eager = run(plan, interpreter, arguments), function(*arguments)
    eager = eager if isinstance(eager, tuple) else (eager,)
    exact = function(*(a.double() if a.is_floating_point() else a for a in arguments))
    exact = exact if isinstance(exact, tuple) else (exact,)
    for mine, theirs, best in zip(got, eager, exact, strict=True):
        assert mine.dtype == theirs.dtype
        if not mine.is_floating_point():
            assert torch.equal(mine, theirs)
            continue
        wide, finite = mine.double(), best.isfinite()
        assert torch.equal(wide[~finite].nan_to_num(), best[~finite].nan_to_num())
        largest = best[finite].abs().amax() if finite.any() else 0.0
        assert ((wide - best)[finite].abs() <= _ROUNDINGS * torch.finfo(mine.dtype).eps * largest).all()
    return plan


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts pay for few points: the interpreter takes its time."""
    monkeypatch.setattr(scan_chunks, "_LAUNCHES", 0.0)


LONG: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "a row": (lambda x: x.cumsum(0), (numbers(2048),)),
    "an odd row": (lambda x: x.cumsum(0), (numbers(5003),)),
    "from its end": (lambda x: x.flip(0).cumsum(0).clamp(-1, 1), (numbers(5003, dtype=BF16),)),
    "a gradient": (lambda x: x.flip(0).cumsum(0).flip(0), (numbers(5003),)),
    "rows": (lambda x: (x * 2).cumsum(1) - x, (numbers(3, 5003, dtype=F16),)),
    "columns": (lambda x: x.cumsum(0), (numbers(1001, 5),)),
    "columns from their ends": (lambda x: x.flip(0).cumsum(0).flip(0), (numbers(1001, 5),)),
    "in the middle": (lambda x: x.cumsum(1), (numbers(2, 301, 3),)),
    "counts": (lambda x: (x > 0).cumsum(0), (numbers(5000),)),
    "bytes": (lambda x: x.cumsum(0, dtype=torch.uint8), (torch.arange(5001) % 7,)),
    "logarithms": (lambda x: x.logcumsumexp(0), (numbers(200, 3),)),
    "greatest": (lambda x: tuple(x.cummax(0)), (numbers(200, 3).round(decimals=2),)),
    "two": (lambda x, y: (x.cumsum(0), y.cumsum(0) * x), (numbers(5001), numbers(5001) + 1)),
    "one of another": (lambda x: (x.cumsum(0) * 1e-3).cumsum(0), (numbers(5003) + 1,)),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", LONG)
def test_long_scans_in_parts(interpreter: Interpreter, name: str) -> None:
    function, arguments = LONG[name]
    plan = check(interpreter, function, *arguments)
    assert scans(plan) > 1
    assert any(d.taken and "scan in parts" in d.subject for d in plan.decisions)


@pytest.mark.usefixtures("small")
def test_values_that_are_not_finite(interpreter: Interpreter) -> None:
    x = numbers(6, 2051)
    for row, value in enumerate([INF, -INF, NAN]):
        x[row, 0] = x[row + 3, 2050] = value
    assert scans(check(interpreter, lambda x: x.cumsum(1), x)) > 1


@pytest.mark.usefixtures("small")
def test_a_product_that_is_zero_stays_so(interpreter: Interpreter) -> None:
    x = torch.full((130, 3), 1e3)
    x[1] = 0.0
    plan = check(interpreter, lambda x: x.cumprod(0), x)
    assert [d.reason for d in plan.decisions if "scan in parts" in d.subject] == [
        "a part's product that overflows would make NaN of a zero before it"
    ]


SHAPES = [(1,), (7,), (5000,), (5, 77), (600, 10), (3, 1), (1, 300), (4, 40, 37), (2, 33, 2, 16)]


@pytest.mark.parametrize("shape", SHAPES)
def test_short_scans(interpreter: Interpreter, shape: tuple[int, ...]) -> None:
    x = numbers(*shape)
    for dim in range(len(shape)):
        check(interpreter, partial(lambda x, dim: (x.cumsum(dim), x.to(BF16).cumsum(dim)), dim=dim), x)
    check(interpreter, lambda x: x.flip(-1).cumsum(-1).flip(-1), x)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_operands_that_lie_otherwise(interpreter: Interpreter, dim: int) -> None:
    check(interpreter, lambda x, y: (x * y).cumsum(dim), numbers(9, 34, 40), numbers(9, 40, 34).transpose(1, 2))


@pytest.mark.usefixtures("small")
def test_results_are_the_same_in_every_run(interpreter: Interpreter) -> None:
    x = numbers(5003)
    plan = planned(lambda x: x.cumsum(0), x)
    first, second = run(plan, interpreter, (x,)), run(plan, interpreter, (x,))
    assert torch.equal(first[0], second[0])
