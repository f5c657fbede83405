"""Random programs as a small GPU's kernels in Triton's interpreter: forward and backward, each kernel by two schedules.

A failing one is printed as code that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lamina.base.reference import copied, in_double
from lamina.base.target import Target
from lamina.codegen.triton.emit import emit
from lamina.codegen.triton.source import TritonSource, UnsupportedKernel
from lamina.ir.loops_interp import run_library
from lamina.ir.plan import Kernel, KernelCall, Plan
from lamina.ir.plan_verify import verify_plan
from lamina.lower.to_loops import CannotLower, lower
from lamina.schedule.fuse import fuse
from lamina.schedule.gpu_space import candidates
from lamina.schedule.plan import make_plan
from lamina.testing import judge
from lamina.tuning.kernels import axis_lengths
from tests.codegen.triton import test_plans
from tests.codegen.triton.harness import Interpreter
from tests.codegen.triton.test_plans import SMALL, run
from tests.fuzz.programs import Program, programs
from tests.fuzz.test_fuzz import FLOOR, unstable
from tests.lower.torch_private import traced
from tests.semantics.program import cotangent

SMALL_BUDGET = 25
SIZES = (1, 2, 3, 5, 8, 17, 33, 64, 129, 300, 1024, 2050, 5003)
"""Rows that fit into registers, are gone over in tiles, begin anywhere, and are shared by programs."""
DTYPES = ("float32", "bfloat16", "int32", "int64", "uint8", "bool")
"""Not float64: eager's results are the exact ones themselves then."""


def with_gradients(function: Callable[..., Any], count: int) -> Callable[..., list[Tensor]]:
    """The outputs of the first ``count`` arguments, then the inputs' gradients where the other arguments go back."""

    def run(*arguments: Tensor) -> list[Tensor]:
        inputs, cotangents = arguments[:count], arguments[count:]
        outputs = list(function(*inputs))
        differentiable = [t for t in outputs if t.requires_grad]
        leaves = [t for t in inputs if t.requires_grad]
        found: tuple[Tensor | None, ...] = ()
        if differentiable:
            found = torch.autograd.grad(differentiable, leaves, cotangents, allow_unused=True)
        return [*(t.detach() for t in outputs), *(g for g in found if g is not None)]

    return run


def otherwise(plan: Plan, number: int) -> Iterator[Plan]:
    """The plan with each of its kernels by its candidate of that number, as far as it has so many."""
    changed = []
    for kernel in plan.kernels:
        call = next(s for s in plan.steps if isinstance(s, KernelCall) and s.kernel == kernel.name)
        if len(kernel.nests) == 1:
            dtypes = {f"b{k}": d for k, d in enumerate(kernel.dtypes)}
            (nest,) = kernel.nests
            others = candidates(nest, dtypes, SMALL, axis_lengths(nest, call), alone=True)
            if len(others) > number:
                kernel = replace(kernel, schedules=(others[number].schedule,))
        changed.append(kernel)
    if tuple(changed) != plan.kernels:
        yield replace(plan, kernels=tuple(changed))


def floor(program: Program, result: Tensor) -> float:
    """Units in the last place of a result below which errors count as none; eager may be lucky beyond them."""
    if "bfloat16" not in program.source() or not result.is_floating_point():
        return FLOOR
    return 4 * torch.finfo(torch.bfloat16).eps / torch.finfo(result.dtype).eps


def complaints(program: Program, number: int, interpreter: Interpreter) -> list[str]:
    """What the kernels of a program get wrong."""
    function, inputs = program.load()
    whole = with_gradients(function, len(inputs))
    for t in inputs:
        t.requires_grad_(t.is_floating_point())
    inputs += [cotangent(t, n) for n, t in enumerate(function(*inputs)) if t.requires_grad]
    eager = whole(*inputs)
    with in_double():
        exact = whole(*copied(inputs, wide=True))
    if [t.shape for t in eager] != [t.shape for t in exact]:
        return []  # a gradient that only one of them has
    plan = make_plan(fuse(lower(traced(whole, inputs), "fuzz")), SMALL)
    verify_plan(plan)
    arguments = [t.detach() for t in inputs]
    found = []
    for label, one in (("", plan), *((f" by candidate {number}", p) for p in otherwise(plan, number))):
        ours = run(one, interpreter, arguments, run_library)
        for place, (mine, theirs, true) in enumerate(zip(ours, eager, exact, strict=True)):
            complaint = judge(mine, theirs, true, floor=floor(program, mine))
            if complaint and not unstable(theirs, true):
                schedules = [k.schedules for k in one.kernels] if label else ""
                found.append(f"result {place}{label}: {complaint} {schedules}")
    return found


def test_random_kernels(request: pytest.FixtureRequest, interpreter: Interpreter) -> None:
    budget = int(request.config.getoption("--fuzz-examples")) or SMALL_BUDGET
    ran = 0

    @settings(
        max_examples=budget,
        deadline=None,
        derandomize=budget == SMALL_BUDGET,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(programs(wide=True, sizes=SIZES, dtypes=DTYPES, fewest=4), st.integers(1, 7))
    def check(program: Program, number: int) -> None:
        nonlocal ran
        try:
            found = complaints(program, number, interpreter)
        except (CannotLower, UnsupportedKernel):
            return
        except Exception as problem:
            text = f"{type(problem).__name__}: {problem}\n\ncandidate {number}\n{program.source()}"
            raise AssertionError(text) from problem
        assert not found, "\n".join([*found, "", f"candidate {number}", program.source()])
        ran += 1

    check()
    assert ran > budget // 2  # what cannot be lowered, or added up atomically, is left out


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch, interpreter: Interpreter) -> None:
    def wrong(kernel: Kernel, target: Target) -> TritonSource:
        source = emit(kernel, target)
        return replace(source, text=source.text.replace("libdevice.sin(", "libdevice.cos("))

    program = Program((("x0", (5, 300), "float32"),), ("v0 = torch.sin(x0)", "v1 = v0.sum((1,))"), ("v0", "v1"))
    assert complaints(program, 1, interpreter) == []
    monkeypatch.setattr(test_plans, "emit", wrong)
    assert "result 0: largest error" in complaints(program, 1, interpreter)[0]
