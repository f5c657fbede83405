"""Every scalar operation on every element type in generated Triton, special values included."""

from __future__ import annotations

import pytest
import torch

from lamina.base.dtypes import DTYPES, torch_dtype
from lamina.base.target import cpu
from lamina.ir.index import as_expr
from tests.codegen.harness import dense
from tests.codegen.test_ops import CASTS, defined_cast, inputs, make, mismatch
from tests.codegen.triton.harness import Case, Interpreter, both, case
from tests.codegen.writer import Body


def without_subnormals(value: torch.Tensor) -> torch.Tensor:
    """The interpreter's conversions from bfloat16 lose subnormal numbers; the hardware's do not."""
    tiny = (value.abs() < torch.finfo(value.dtype).tiny) & (value != 0)
    return torch.where(tiny, torch.tensor(0.75, dtype=value.dtype), value)


def spec(dtype: str) -> Case:
    given = make(dtype, cpu("plain", 1))
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


@pytest.mark.parametrize("number", [9.0, -3.0, 0.1, 49.0, 8.0, -0.25, 1e-37, 3e38, 0.0, float("inf")])
def test_quotients_by_a_number(interpreter: Interpreter, number: float) -> None:
    """Zeros, which exact divisions are slow for, keep their sign; powers of two are products."""
    special = [
        0.0,
        -0.0,
        float("inf"),
        -float("inf"),
        float("nan"),
        1e-45,
        -3e-41,
        1.1754944e-38,
        3.4e38,
        1.0,
        7.0,
        -1 / 3,
    ]
    x = torch.cat([torch.tensor(special), torch.randn(116, generator=torch.Generator().manual_seed(0))])
    body = Body(128)
    body.store("Y", body.at, body.op("div", body.load("X", *body.at), body.constant(number)))
    made = case("quotients", [body.nest()], [dense("X", "float32", [128]), dense("Y", "float32", [128])])
    assert ("exact_quotient(" in made.source.text) == (number not in (8.0, -0.25))
    got, want = both(made, interpreter, {"X": x}, {})
    assert torch.equal(got["Y"].view(torch.int32)[~x.isnan()], (x / number).view(torch.int32)[~x.isnan()]) or not number
    torch.testing.assert_close(got["Y"], want["Y"], rtol=0, atol=0, equal_nan=True)
