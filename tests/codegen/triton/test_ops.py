"""Every scalar operation on every element type in generated Triton, special values included."""

from __future__ import annotations

import pytest
import torch

from lamina.base.dtypes import DTYPES
from lamina.schedule.target import Target
from tests.codegen.test_ops import CASTS, defined_cast, inputs, make, mismatch
from tests.codegen.triton.harness import Case, Interpreter, both, case


def without_subnormals(value: torch.Tensor) -> torch.Tensor:
    """The interpreter's conversions from bfloat16 lose subnormal numbers; the hardware's do not."""
    tiny = (value.abs() < torch.finfo(value.dtype).tiny) & (value != 0)
    return torch.where(tiny, torch.tensor(0.75, dtype=value.dtype), value)


def spec(dtype: str) -> Case:
    given = make(dtype, Target.of("plain", 1))
    return case(f"ops_{dtype}", given.nests, list(given.buffers.values()))


@pytest.mark.parametrize("dtype", CASTS)
def test_operations(interpreter: Interpreter, dtype: str) -> None:
    given = inputs(dtype)
    if dtype == "bfloat16":
        given = {name: without_subnormals(value) for name, value in given.items()}
    got, want = both(spec(dtype), interpreter, given, {})
    problems = []
    for name in got:
        ok = defined_cast(given["A"], name) & defined_cast(given["B"], name)
        if name in ("mod", "fmod", "floor_div") and DTYPES[dtype].is_float:
            ok &= ~((given["B"].abs() < 1e-30) & (given["A"].abs() > 1))  # eager's vector version gives up here
        if name in ("shl", "shr"):
            ok &= given["B"] >= 0
        if name == "pow" and DTYPES[dtype].is_integer:
            ok &= given["B"] >= 0
        why = mismatch(name, dtype, got[name][ok], want[name][ok])
        if why:
            problems.append(f"{name}: {why[:300]}")
    assert not problems, "\n".join(problems)
