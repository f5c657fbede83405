"""Expressions of half precision round where an operation ends, and those that only change a sign do not."""

from __future__ import annotations

import pytest

from lamina.codegen.cpp.expressions import compute


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize(("dtype", "rounding"), [("bfloat16", "round_bf16("), ("float16", "round_f16(")])
def test_half_precision_rounds_after_each_operation(dtype: str, rounding: str, vector: bool) -> None:
    for op in ("add", "sub", "mul", "div", "maximum"):
        assert compute(op, ["a", "b"], [dtype, dtype], dtype, vector).startswith(rounding)
    assert rounding not in compute("neg", ["a"], [dtype], dtype, vector)
    assert rounding not in compute("lt", ["a", "b"], [dtype, dtype], "bool", vector)
