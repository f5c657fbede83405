"""Every scalar operation on every element type, against the interpreter, special values included."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lamina.base.dtypes import DTYPES, torch_dtype
from lamina.base.target import Target, cpu
from lamina.ir.index import Axis, as_expr
from lamina.ir.loops import Buffer, Compute, Equation, Load, Nest, Store
from lamina.ir.ops import OPS, Op, result_dtype
from lamina.runtime.toolchain import host_isa
from tests.codegen.harness import Case, both, build, case, dense

FLOATS = ("float32", "float64", "bfloat16", "float16")
INTS = ("int64", "int32", "int16", "int8", "uint8")
COUNT = 91
ISAS = [isa for isa in ("plain", "avx2") if isa == "plain" or host_isa() != "plain"]
CASTS = (*FLOATS, *INTS, "bool")
LARGEST_ULP = {"float32": 4.0, "float64": 4.0, "bfloat16": 1.0, "float16": 1.0}
LOOSE = {"lgamma": 1e-5, "digamma": 1e-4, "erfinv": 1e-5, "pow": 1e-5, "tan": 1e-5}
"""Operations whose eager version is itself some way off in float; relative error."""


def values(dtype: str, seed: int, positive: bool = False) -> torch.Tensor:
    """Special values first, then ordinary ones."""
    g = torch.Generator().manual_seed(seed)
    kind = torch_dtype(dtype)
    if dtype == "bool":
        return torch.rand(COUNT, generator=g) < 0.5
    if DTYPES[dtype].is_integer:
        info = torch.iinfo(kind)
        edge = torch.tensor([0, 1, info.max, info.min, 7, 100, 5, 3], dtype=kind)
        low = 0 if info.min == 0 else -50
        body = torch.randint(low, 50, (COUNT - 8,), generator=g).to(kind)
        return torch.cat([edge, body]).roll(seed * 3)
    edge = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 0.5, 1e-40, 88.0, -104.0])
    body = torch.randn(COUNT - 11, generator=g) * 3
    out = torch.cat([edge, body]).roll(seed * 5).to(kind)
    return out.abs() if positive else out


def legal(op: Op, dtype: str) -> bool:
    """Whether the reference is defined on the dtype and keeps it, as the type rule says."""
    if op.name in ("bits", "from_bits"):
        return dtype in (("float32", "float64") if op.name == "bits" else ("int32", "int64"))
    if op.name in ("cast", "where") or (op.name in ("and", "or", "xor", "not") and dtype != "bool"):
        return False
    if op.name == "nextafter" and dtype in ("bfloat16", "float16"):
        return False
    if dtype != "bool" and op.name in ("fmin", "fmax") and not DTYPES[dtype].is_float:
        return False
    if dtype in ("bool",) and op.name in ("sign", "shl", "shr", "neg", "sub", "fmin", "fmax", "pow", "relu"):
        return False
    try:
        result = op.reference(*(torch.ones(1, dtype=torch_dtype(dtype)) for _ in range(op.arity)))
    except RuntimeError:
        return False
    return bool(result.dtype == (torch.bool if op.result == "bool" else torch_dtype(dtype)))


def make(dtype: str, target: Target) -> Case:
    """One nest that applies every legal operation to a dtype, each into a buffer of its own."""
    axis = Axis("i", as_expr(COUNT))
    at = (as_expr(axis),)
    buffers: list[Buffer] = [dense(n, dtype, [COUNT]) for n in ("A", "B")]
    body: list[Equation] = [Load("a", "A", at, dtype), Load("b", "B", at, dtype)]
    for op in OPS.values():
        if legal(op, dtype):
            result = result_dtype(op, dtype, dtype)
            buffers.append(dense(op.name, result, [COUNT]))
            body.append(Compute(f"v_{op.name}", op.name, ("a", "b")[: op.arity], result))
            body.append(Store(op.name, at, f"v_{op.name}"))
    for to in CASTS:
        name = f"to_{to}"
        buffers += [dense(name, to, [COUNT]), dense(f"{name}_pick", to, [COUNT])]
        body += [Compute(f"v_{name}", "cast", ("a",), to), Store(name, at, f"v_{name}")]
        body += [Compute(f"w_{name}", "cast", ("b",), to), Compute(f"c_{name}", "cast", ("b",), "bool")]
        body += [Compute(f"p_{name}", "where", (f"c_{name}", f"v_{name}", f"w_{name}"), to)]
        body += [Store(f"{name}_pick", at, f"p_{name}")]
    return case(f"ops_{dtype}", [Nest("ops", (axis,), tuple(body))], buffers, target)


def inputs(dtype: str) -> dict[str, torch.Tensor]:
    """Two operands; eager raises for an integer divided by zero, so there is none."""
    a, b = values(dtype, 1), values(dtype, 2)
    return {"A": a, "B": torch.where(b == 0, 3, b).to(b.dtype) if DTYPES[dtype].is_integer else b}


def mismatch(name: str, dtype: str, got: torch.Tensor, want: torch.Tensor) -> str:
    """Why two results differ, or nothing."""
    if not got.dtype.is_floating_point:
        return "" if torch.equal(got, want) else f"{got.tolist()} is not {want.tolist()}"
    g, w = got.double(), want.double()
    if not torch.equal(g.isnan(), w.isnan()):
        return f"NaN differs at {(g.isnan() != w.isnan()).nonzero().flatten().tolist()}"
    plain = ~w.isnan() & ~w.isinf()
    if not torch.equal(g[w.isinf()], w[w.isinf()]):
        return "infinities differ"
    eps = torch.finfo(got.dtype).eps
    limit = LOOSE.get(name, 0.0) + LARGEST_ULP[str(got.dtype).removeprefix("torch.")] * eps
    wrong = ((g - w).abs() > limit * w.abs() + torch.finfo(got.dtype).tiny) & plain
    return f"{g[wrong].tolist()} is not {w[wrong].tolist()}" if wrong.any() else ""


def defined_cast(source: torch.Tensor, name: str) -> torch.Tensor:
    """Where converting to an integer is defined: C++ says nothing about what does not fit."""
    to = name.removeprefix("to_").removesuffix("_pick")
    if not name.startswith("to_") or not source.dtype.is_floating_point or not DTYPES[to].is_integer:
        return torch.ones(COUNT, dtype=torch.bool)
    info = torch.iinfo(torch_dtype(to))
    wide = source.double()
    return (wide >= info.min) & (wide <= info.max * (1 - 2**-40)) & ~wide.isnan()


@pytest.fixture(scope="module", params=ISAS)
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    target = cpu(request.param, 2)
    cases = {d: make(d, target) for d in CASTS}
    return cases, build(list(cases.values()), target, Path(tmp_path_factory.mktemp(request.param)))


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("dtype", CASTS)
def test_operations(kernels, dtype: str) -> None:
    cases, library = kernels
    given = inputs(dtype)
    got, want = both(cases[dtype], library, given, {})
    problems = []
    for name in got:
        ok = defined_cast(given["A"], name) & defined_cast(given["B"], name)
        if name in ("mod", "fmod") and DTYPES[dtype].is_float:
            ok &= ~((given["B"].abs() < 1e-30) & (given["A"].abs() > 1))  # eager's vector version gives up here
        if name in ("shl", "shr"):
            ok &= given["B"] >= 0
        if name == "pow" and DTYPES[dtype].is_integer:
            ok &= given["B"] >= 0
        why = mismatch(name, dtype, got[name][ok], want[name][ok])
        if why:
            problems.append(f"{name}: {why[:300]}")
    assert not problems, "\n".join(problems)
