"""Samples of torch's operator database, compiled against eager: values, gradients, kind of result, exceptions."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.compilers import CompileFunction, compile_function
from benchmarks.opinfo import LIMITS
from tests.ops.check import check
from tests.ops.fast import FAST
from tests.ops.torch_private import operators

OPERATORS = operators()
KNOWN = json.loads(LIMITS.read_text(encoding="utf-8"))["limits"] if LIMITS.exists() else {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        every = metafunc.config.getoption("--all-ops")
        metafunc.parametrize("name", list(OPERATORS) if every else FAST)


@pytest.mark.sampled(one_in=8)
def test_operator(compile: CompileFunction, name: str) -> None:
    result = check(name, OPERATORS[name], compile)
    if result.status == "skipped":
        pytest.skip(result.detail)
    if result.status != "passed" and KNOWN.get(name, {}).get("status") == result.status:
        pytest.xfail(f"torch's own front end: {KNOWN[name]['reason']}")
    assert result.status == "passed", "\n".join([result.detail, *result.complaints])


@pytest.mark.parametrize("wrong", ["add", "softmax", "nn.functional.layer_norm", "matmul", "sum", "gather"])
def test_the_check_sees_a_result_that_is_wrong_by_one_in_three_hundred(wrong: str) -> None:
    result = check(wrong, OPERATORS[wrong], compile_function("wrong"))
    assert result.status == "mismatch"
    assert len(result.complaints) >= (2 if result.gradients else 1)


@pytest.mark.parametrize("factor", [2.0, 2.5])
def test_results_that_nothing_sets_are_told_from_wrong_ones(factor: float) -> None:
    def twice_and_nothing(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2.0, torch.empty(3, dtype=torch.int64)

    def compile(_: Callable[..., Any], **__: Any) -> Callable[..., Any]:
        return lambda x, *_: (x * factor, torch.tensor([-1, -2, -3]))

    sample = SimpleNamespace(input=torch.rand(4, requires_grad=True), args=(), kwargs={})
    operator = SimpleNamespace(
        name="twice", variant_test_name="", supports_autograd=True, supports_dtype=lambda *_: True,
        sample_inputs=lambda *_, **__: [sample], op=twice_and_nothing,
    )  # fmt: skip
    result = check("twice", operator, compile)
    assert result.undefined == ["output 1"]
    assert result.status == ("passed" if factor == 2.0 else "mismatch")
