"""Every scalar operation on every element type in generated Triton, special values included."""

from __future__ import annotations

import pytest
import torch

from lamina.base.dtypes import DTYPES, torch_dtype
from lamina.ir.index import as_expr
from lamina.schedule.target import Target
from tests.codegen.harness import dense
from tests.codegen.test_ops import CASTS, defined_cast, inputs, make, mismatch
from tests.codegen.triton.harness import Case, Interpreter, both, case
from tests.codegen.writer import Body


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_digamma_next_to_its_poles(interpreter: Interpreter, dtype: str) -> None:
    """There the tangent of the reflection turns a rounded multiple of pi into thousands of units in the last place."""
    body = Body(63)
    body.store("Y", body.at, body.op("digamma", body.load("X", *body.at, dtype=dtype)))
    made = case("poles", [body.nest()], [dense("X", dtype, [63]), dense("Y", dtype, [63])])
    poles = -torch.arange(1, 8, dtype=torch.float64)[:, None]
    x = (poles + torch.tensor([1e-4, -1e-4, 1e-3, -1e-2, 0.1, 0.25, -0.3, 0.5, 0.7])).flatten().to(torch_dtype(dtype))
    got, _ = both(made, interpreter, {"X": x}, {})
    exact = torch.special.digamma(x.double())
    ulps = 16 if dtype == "float32" else 2**16  # the reference itself loses digits next to a pole
    torch.testing.assert_close(got["Y"].double(), exact, rtol=ulps * torch.finfo(x.dtype).eps, atol=1e-6)


def test_small_constants(interpreter: Interpreter) -> None:
    """A tensor of numbers that the program holds, written element by element."""
    body = Body()
    for place, number in enumerate((3, -1, 2**40)):
        body.store("Y", [as_expr(place)], body.constant(number, "int64"))
    made = case("table", [body.nest()], [dense("Y", "int64", [3])])
    got, _ = both(made, interpreter, {}, {})
    assert got["Y"].tolist() == [3, -1, 2**40]
