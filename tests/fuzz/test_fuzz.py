"""Random programs, compiled against eager, forward and backward; a failing one is printed as code that runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from benchmarks.compilers import CompileFunction, compile_function
from lamina.base.reference import copied, in_double
from lamina.testing import judge
from tests.fuzz.programs import Program, programs
from tests.semantics.program import cotangent

SMALL_BUDGET = 40
FLOOR = 32.0
"""In units of the last place: a program chains ten operations, and eager may be lucky in all of them."""

DROPOUT_FLOOR = 512.0
"""In units of the last place: two ways to compute one program in float32, with no fp64 run between them."""


def complaints(program: Program, compile: CompileFunction) -> list[str]:
    """What a compiled program gets wrong."""
    function, inputs = program.load()
    eager = _results(function, inputs)
    torch.compiler.reset()
    ours = _results(compile(function, dynamic=False), inputs)
    with in_double():
        exact = _results(function, copied(inputs, wide=True))
    if any(a.shape != b.shape for a, b in zip(eager, exact, strict=True)):
        return ["the fp64 run has results of other shapes"]
    found = []
    for number, (mine, theirs, true) in enumerate(zip(ours, eager, exact, strict=True)):
        complaint = judge(mine, theirs, true, floor=FLOOR)
        if complaint and not unstable(theirs, true):
            found.append(f"result {number}: {complaint}")
    return found


def unstable(eager: Tensor, exact: Tensor) -> bool:
    """True where rounding turned a comparison, a floor or a cast to integer in eager itself: no digit is certain."""
    if not eager.is_floating_point():
        return bool((eager != exact.to(eager.dtype)).any())
    gap = (eager.double() - exact.double()).abs().nan_to_num()
    scale = exact.double().abs().nan_to_num(posinf=0.0).max() if exact.numel() else torch.tensor(0.0)
    return bool((gap > 0.05 * scale).any())


def _results(function: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    """Outputs, then gradients of the inputs that have one."""
    given = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs]
    outputs = list(function(*given))
    differentiable = [(n, t) for n, t in enumerate(outputs) if t.requires_grad]
    leaves = [t for t in given if t.requires_grad]
    gradients: tuple[Tensor | None, ...] = ()
    if differentiable:
        gradients = torch.autograd.grad(
            [t for _, t in differentiable], leaves, [cotangent(t, n) for n, t in differentiable], allow_unused=True
        )
    present = [t.new_zeros(()) if g is None else g for g, t in zip(gradients, leaves, strict=False)]
    return [t.detach() for t in [*outputs, *present]]


def test_random_programs(request: pytest.FixtureRequest, compile_session: CompileFunction) -> None:
    budget = int(request.config.getoption("--fuzz-examples")) or SMALL_BUDGET

    @settings(
        max_examples=budget,
        deadline=None,
        derandomize=budget == SMALL_BUDGET,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(programs(wide=budget != SMALL_BUDGET))
    def run(program: Program) -> None:
        try:
            found = complaints(program, compile_session)
        except Exception as problem:
            raise AssertionError(f"{type(problem).__name__}: {problem}\n\n{program.source()}") from problem
        assert not found, "\n".join([*found, "", program.source()])

    run()
    torch.compiler.reset()


def dropout_complaints(program: Program, compile: CompileFunction) -> list[str]:
    """Where kernels and the loop program's interpreter, drawing the same random numbers, disagree."""
    function, inputs = program.load()
    found = []
    runs = []
    for backend in ("lamina", "interp"):
        torch.compiler.reset()
        compiled = compile(function, dynamic=False, backend=backend)
        torch.manual_seed(7)
        runs.append(_results(compiled, inputs))
    for number, (mine, theirs) in enumerate(zip(*runs, strict=True)):
        complaint = judge(mine, theirs, theirs, floor=DROPOUT_FLOOR)
        if complaint:
            found.append(f"result {number}: {complaint}")
    return found


def test_random_programs_with_dropout(request: pytest.FixtureRequest, compile_session: CompileFunction) -> None:
    budget = int(request.config.getoption("--fuzz-examples"))
    if request.config.getoption("--compile") != "lamina" or not budget:
        pytest.skip("compares two backends of lamina.compile, when --fuzz-examples asks for it")

    @settings(
        max_examples=budget,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(programs(wide=True, dropout=True))
    def run(program: Program) -> None:
        try:
            found = dropout_complaints(program, compile_session)
        except Exception as problem:
            raise AssertionError(f"{type(problem).__name__}: {problem}\n\n{program.source()}") from problem
        assert not found, "\n".join([*found, "", program.source()])

    run()
    torch.compiler.reset()


def test_the_fuzzer_finds_a_wrong_compiler() -> None:
    wrong = compile_function("wrong")
    program = Program((("x0", (5, 8), "float32"),), ("v0 = torch.sin(x0)", "v1 = v0.sum((1,))"), ("v0", "v1"))
    found = complaints(program, wrong)
    assert len(found) == 3
    assert "largest error" in found[0]
    assert complaints(program, compile_function("eager")) == []
