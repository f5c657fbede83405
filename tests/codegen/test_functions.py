"""Rarer vector functions, quotients and conversions: accuracy, edge cases, and rows that end within a vector."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import mpmath
import numpy
import pytest
import torch
from torch import Tensor

from lamina.base.target import cpu
from lamina.codegen.cpp.low_precision import COARSE, kept_in_16_bits
from lamina.runtime.toolchain import host_isa
from tests.codegen.harness import build, call, case, dense
from tests.codegen.writer import Body

ISAS = {"avx512": ("avx2", "avx512"), "avx2": ("avx2",), "plain": ()}[host_isa()]
LIMITS = {"sinh": 2.0, "cosh": 2.0, "asinh": 1.5, "acosh": 1.5, "erfinv": 1.0, "exp": 1.0}
LIMITS |= {"expm1": 1.2, "log1p": 1.1, "sin": 1.0, "cos": 1.0, "atanh": 1.0}
"""Largest error in units in the last place, of floats."""
WIDE_LIMITS = {**LIMITS, "erfinv": 6.0, "exp": 1.5}
INFINITY = float("inf")
EDGES = [0.0, -0.0, 1.0, -1.0, INFINITY, -INFINITY, float("nan"), 1e-45, -1e-45, 1e-40, 1e-310, 0.9999999, 2.5, -2.5]
EDGES += [88.7, 88.72283, 89.4, 89.5, -89.4, 709.9, 710.4, 710.5, -710.4, 1e9, 1.1e9, 3e38, -3e38, -103.97, -103.98]


def run(function: str, args: list[Tensor], isa: str, folder: Path) -> Tensor:
    """One operation on vectors of ``isa``."""
    kind = str(args[0].dtype).removeprefix("torch.")
    count, target = args[0].numel(), cpu(isa, 1)
    body = Body(count)
    loads = [body.load(f"X{k}", *body.at, dtype=kind) for k in range(len(args))]
    body.store("Y", body.at, body.op(function, *loads))
    buffers = [dense(name, kind, [count]) for name in (*(f"X{k}" for k in range(len(args))), "Y")]
    made = case("f", [body.nest()], buffers, target)
    result = torch.empty_like(args[0])
    tensors = {f"X{k}": a for k, a in enumerate(args)}
    place = folder / f"{function}{len(list(folder.iterdir()))}"  # a library of the same name would not be loaded again
    place.mkdir()
    assert call(made, build([made], target, place), {**tensors, "Y": result}, {}) == 0
    return result


def same(got: Tensor, want: Tensor) -> Tensor:
    """Equal, zeros with their signs, any NaN like any other."""
    if not got.is_floating_point():
        return got == want
    return (got.isnan() & want.isnan()) | ((got == want) & (got.signbit() == want.signbit()))


def arguments(function: str, dtype: torch.dtype, count: int) -> Tensor:
    g = torch.Generator().manual_seed(7)
    unit = torch.rand(count, generator=g, dtype=torch.float64)
    near = [(unit - 0.5) * width for width in (1, 6, 300)]
    if function == "erfinv":
        near = [unit * 2 - 1, 1 - torch.exp(-36 * unit), torch.exp(-80 * unit)]
    if function in ("sin", "cos"):  # multiples of a quarter turn, where little is left of the argument
        near += [(unit * 80000).round() * (math.pi / 2), (unit * 100).round() * (math.pi / 2)]
    spread = torch.exp((unit - 0.5) * 170) * torch.where(unit.roll(1) < 0.5, -1.0, 1.0)
    return torch.cat([*near, spread, torch.tensor(EDGES, dtype=torch.float64)]).to(dtype)


def exact(function: str, x: float) -> float | mpmath.mpf:
    """The true value, to 40 digits where it is finite."""
    plain = {"acosh": x >= 1, "erfinv": -1 <= x <= 1, "atanh": -1 <= x <= 1, "log1p": x >= -1}.get(function, True)
    if math.isnan(x) or not plain:
        return math.nan
    if math.isinf(x) or x == 0 or (function in ("erfinv", "atanh", "log1p") and abs(x) == 1):
        return float(getattr(torch, function)(torch.tensor(x, dtype=torch.float64)))
    if abs(x) > 720 and function == "expm1":
        return INFINITY if x > 0 else -1.0
    if abs(x) > 720 and function in ("exp", "sinh", "cosh"):
        return math.copysign(INFINITY, x if function == "sinh" else 1) if function != "exp" or x > 0 else 0.0
    with mpmath.workdps(40):
        return getattr(mpmath, function)(mpmath.mpf(x))


@pytest.mark.sampled(one_in=5)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("function", LIMITS)
def test_accuracy(function: str, dtype: torch.dtype, isa: str, tmp_path: Path) -> None:
    x = arguments(function, dtype, 400)
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps
    limit = (LIMITS if dtype == torch.float32 else WIDE_LIMITS)[function]
    got = run(function, [x], isa, tmp_path)
    for at, found in zip(x.tolist(), got.tolist(), strict=True):
        true = exact(function, at)
        rounded = float(torch.tensor(float(true), dtype=torch.float64).to(dtype))
        if math.isnan(rounded) or math.isinf(rounded) or rounded == 0 or math.isinf(found):
            border = function == "exp" and rounded == 0 and found == least  # half of the least number, or nearly
            assert border or bool(same(torch.tensor(found), torch.tensor(rounded))), f"{function}({at}) = {found}"
            continue
        unit = max(least, 2.0 ** (math.frexp(rounded)[1] - 1) * info.eps)
        with mpmath.workdps(40):
            error = float(abs(mpmath.mpf(found) - true)) / unit
        assert error <= limit, f"{function}({at}) = {found}: {error:.2f} units"


@pytest.mark.skipif(numpy.finfo(numpy.longdouble).nmant < 63, reason="needs wider numbers than doubles")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("function", ["expm1", "atanh"])
def test_doubles_everywhere(function: str, isa: str, tmp_path: Path) -> None:
    """Many doubles of each range whose values come from other parts of the formula, against 64 bits."""
    g = torch.Generator().manual_seed(9)
    unit, other = torch.rand(2, 20_000, generator=g, dtype=torch.float64)
    tiny = torch.exp(-40 * unit) * torch.where(other < 0.5, -1.0, 1.0)
    ranges = {
        "expm1": (unit * 1.4 - 0.7, unit * 20 - 10, unit * 709.7, unit * -45, tiny),
        "atanh": (unit * 2 - 1, 0.3 + unit * 0.25, 1 - torch.exp(-36 * unit), 1 / 3 + unit * 1e-4, tiny),
    }
    x = torch.cat(ranges[function])
    x = x[x != 0]
    exact_of = {"expm1": numpy.expm1, "atanh": numpy.arctanh}[function]
    want = exact_of(x.numpy().astype(numpy.longdouble))
    unit_of = numpy.ldexp(1.0, numpy.frexp(want.astype(numpy.float64))[1] - 53)
    errors = numpy.abs(run(function, [x], isa, tmp_path).numpy().astype(numpy.longdouble) - want) / unit_of
    assert errors[numpy.isfinite(want)].max() <= {"expm1": 1.25, "atanh": 0.95}[function]


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("function", ["exp", "expm1", "log", "log1p", "atanh", "tanh", "erf"])
def test_no_library_is_called(function: str, isa: str, tmp_path: Path) -> None:
    """What programs use most, of floats, are polynomials in the kernel; with eager's numerics its library."""
    body = Body(64)
    body.store("Y", body.at, body.op(function, body.load("X", *body.at)))
    target = cpu(isa, 1)
    made = case("f", [body.nest()], [dense(name, "float32", [64]) for name in "XY"], target)
    for precise in (False, True):
        folder = tmp_path / str(precise)
        folder.mkdir()
        build([made], target, folder, precise)
        called = f"Sleef_{function}f".encode()
        assert any(called in file.read_bytes() for file in folder.glob("*.so")) == precise


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("function", COARSE)
def test_coarse_functions(function: str, dtype: torch.dtype, isa: str, tmp_path: Path) -> None:
    """What is kept in 16 bits comes from shorter forms, and is rounded as the true value nearly always."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    got, want = run(function, [x], isa, tmp_path), getattr(torch, function)(x.double())
    assert torch.equal(got.isnan(), want.isnan())
    got, want = got[~want.isnan()], want[~want.isnan()]
    assert torch.equal(got.signbit(), want.signbit())
    info = torch.finfo(dtype)
    unit = torch.ldexp(torch.ones_like(want), torch.frexp(want.abs().clamp(min=info.smallest_normal))[1] - 1) * info.eps
    assert float(((got.double() - want).abs() / unit).max()) <= 0.502


def test_where_functions_are_coarse() -> None:
    """Not where something wider is stored of them, and not where a place or a check depends on them."""
    b = Body(64)
    both, one, place = (b.op("erf", b.load(name, *b.at)) for name in ("A", "B", "C"))
    b.store("D", b.at, b.op("add", both, one))
    b.store("E", b.at, both)
    b.store("F", [b.loaded(b.op("cast", place, dtype="int64"), 64)], one)
    kinds = {**dict.fromkeys("ABCE", "float32"), "D": "bfloat16", "F": "float16"}
    found = kept_in_16_bits(b.nest().body, kinds)
    assert one in found
    assert both not in found
    assert place not in found


def test_sines_do_not_depend_on_neighbours(tmp_path: Path) -> None:
    """Beyond some size an argument is the library's matter; those beside it in a vector are not."""
    x = torch.linspace(-30.0, 30.0, 64)
    far = torch.where(torch.arange(64) % 7 == 3, 1e9, x)
    for function in ("sin", "cos"):
        got, alone = (run(function, [v], ISAS[-1], tmp_path) for v in (far, x))
        assert torch.equal(got[far == x], alone[far == x])


@pytest.mark.parametrize("isa", ISAS)
def test_small_powers_of_e(isa: str, tmp_path: Path) -> None:
    """Results below the normal numbers are as exact as those can be."""
    x = torch.linspace(-104.5, -87.0, 100_003)
    got, want = run("exp", [x], isa, tmp_path), torch.exp(x.double())
    assert float((got.double() - want).abs().max()) <= 1.0 * 2.0**-149
    assert int((got > 0).logical_and(got < torch.finfo(torch.float32).smallest_normal).sum()) > 90_000


def pairs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Ordinary quotients, exact multiples, neighbours of them, any bits, and all pairs of edge cases."""
    g = torch.Generator().manual_seed(3)

    def bits() -> Tensor:
        return torch.randint(-(2**31), 2**31, (2000,), generator=g).to(torch.int32).view(torch.float32).to(dtype)

    normal = torch.randn(2000, generator=g, dtype=torch.float64).to(dtype)
    whole = torch.randint(-3000, 3000, (2000,), generator=g).to(dtype)
    edge = torch.tensor(list(itertools.product(EDGES, EDGES)), dtype=torch.float64).to(dtype)
    tenth = torch.full_like(whole, 0.1)
    near = torch.nextafter(normal * whole, normal)
    a = torch.cat([normal * 100, normal * whole, near, whole, whole, bits(), edge[:, 0]])
    b = torch.cat([normal.roll(1), normal, normal, normal.round(), tenth, bits(), edge[:, 1]])
    return a, b


def reference(function: str, a: Tensor, b: Tensor) -> Tensor:
    if function == "nextafter":
        return torch.nextafter(a, b)
    if function == "floor_div":
        return torch.floor_divide(a, b)
    with numpy.errstate(all="ignore"):
        rest = torch.from_numpy(numpy.fmod(a.numpy(), b.numpy()))
    return rest if function == "fmod" else torch.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("function", ["fmod", "mod", "floor_div", "nextafter"])
def test_exact_functions(function: str, dtype: torch.dtype, isa: str, tmp_path: Path) -> None:
    a, b = pairs(dtype)
    # One vector in which all quotients are small takes the short way, one in which one is great the long one.
    order = torch.argsort((a / b).abs().nan_to_num(nan=INFINITY))
    for x, y in ((a, b), (a[order].clone(), b[order].clone())):
        got, want = run(function, [x, y], isa, tmp_path), reference(function, x, y)
        wrong = ~same(got, want)
        assert not wrong.any(), (x[wrong][0], y[wrong][0], got[wrong][0], want[wrong][0])


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int32", "int64"])
def test_integer_quotients(kind: str, isa: str, tmp_path: Path) -> None:
    """Against Python's integers: also the lowest divided by minus one, which wraps, and by zero, which gives zero."""
    dtype = getattr(torch, kind)
    info = torch.iinfo(dtype)
    g = torch.Generator().manual_seed(5)
    far = [torch.randint(info.min, info.max, (600,), dtype=dtype, generator=g) for _ in range(2)]
    edge = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 7, *([-1, -2, -7] if info.min else [])]
    if kind == "int64":
        edge += [2**51 - 1, 2**51, -(2**51), 2**53 + 1, 3 * (2**50 // 3)]
    all_pairs = torch.tensor(list(itertools.product(edge, edge)), dtype=dtype)
    few = torch.randint(max(info.min, -9), 10, (600,), dtype=dtype, generator=g)
    less = far[0] // 4096 if kind == "int64" else far[0]
    a, b = torch.cat([*far, less, all_pairs[:, 0]]), torch.cat([far[1], few, few, all_pairs[:, 1]])
    size = info.max - info.min + 1
    for function in ("floor_div", "trunc_div", "mod", "fmod"):
        got = run(function, [a, b], isa, tmp_path)
        for x, y, found in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
            cut = 0 if y == 0 else (abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1)
            floor = 0 if y == 0 else x // y
            want = {"floor_div": floor, "trunc_div": cut, "mod": x - floor * y, "fmod": x - cut * y}[function]
            want = 0 if y == 0 else (want - info.min) % size + info.min
            assert found == want, (function, x, y, found, want)


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float64"])
def test_conversions_and_ends_of_rows(kind: str, isa: str, tmp_path: Path) -> None:
    """Rows of 1 to 40 elements to float and back: every value, and nothing behind the end is read or written."""
    dtype, target = getattr(torch, kind), cpu(isa, 1)
    cases = {}
    for count in (*range(1, 20), 33, 40, 256):
        body = Body(count)
        x = body.load("X", *body.at, dtype=kind)
        body.store("F", body.at, body.op("cast", x, dtype="float32"))
        body.store("B", body.at, body.op("cast", body.load("G", *body.at), dtype=kind))
        shapes = [("X", kind), ("F", "float32"), ("G", "float32"), ("B", kind)]
        cases[count] = case(f"n{count}", [body.nest()], [dense(n, k, [count]) for n, k in shapes], target)
    library = build(list(cases.values()), target, tmp_path)
    for count, made in cases.items():
        if kind == "bool":
            x = torch.arange(count + 9) % 3 == 0
        elif dtype.is_floating_point:
            x = torch.linspace(-500, 500, count + 9).to(dtype)
        else:
            x = (torch.arange(count + 9) * 1001 - 128).to(dtype) * (2**40 + 1 if kind == "int64" else 1)
        given = x.to(torch.float32)
        floats, back = torch.full((count + 9,), 7.5), torch.ones(count + 9, dtype=dtype)
        assert call(made, library, {"X": x, "F": floats, "G": given, "B": back}, {}) == 0
        assert torch.equal(floats[:count], x[:count].to(torch.float32))
        assert torch.equal(back[:count], given[:count].to(dtype))
        assert (floats[count:] == 7.5).all()
        assert (back[count:] == 1).all()


DIGAMMA_RANGES = ((0.0, 1.0), (1.0, 1.4), (1.4, 1.6), (1.6, 10.0), (10.0, 60.0), (60.0, 1e6), (-6.0, 0.0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_digamma_is_as_exact_as_eagers(dtype: torch.dtype, isa: str, tmp_path: Path) -> None:
    """Of floats the rounded value; of doubles no further from the true value than eager's, which loses digits too
    where the function crosses zero.
    """
    g = torch.Generator().manual_seed(3)
    count = 150
    parts = [torch.rand(count, generator=g, dtype=torch.float64) * (high - low) + low for low, high in DIGAMMA_RANGES]
    x = torch.cat(parts).to(dtype)
    got, eager = run("digamma", [x], isa, tmp_path).double(), torch.digamma(x).double()
    with mpmath.workdps(40):
        wanted = [mpmath.digamma(mpmath.mpf(float(v))) for v in x]
        units = [
            mpmath.mpf(2) ** (mpmath.floor(mpmath.log(abs(w), 2)) + 1) * torch.finfo(dtype).eps / 2 for w in wanted
        ]
        errors = [
            torch.tensor([float(abs(v - w) / u) for v, w, u in zip(values.tolist(), wanted, units, strict=True)])
            for values in (got, eager)
        ]
    if dtype == torch.float32:
        assert errors[0].max() <= 0.51
        return
    for ours, theirs in zip(errors[0].split(count), errors[1].split(count), strict=True):
        assert ours.mean() <= 1.1 * theirs.mean() + 0.1
        assert ours.max() <= 2.5 * theirs.max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("function", ["digamma", "erfc"])
def test_edges_are_eagers(function: str, dtype: torch.dtype, isa: str, tmp_path: Path) -> None:
    edges = [*EDGES, -3.0, 5e-324, -5e-324, 2.0**52, -(2.0**60), 1e300, -1e300, 10.0, 10.06, 26.5, 26.6, 27.3, -27.0]
    x = torch.tensor(edges, dtype=torch.float64).to(dtype)
    got, want = run(function, [x], isa, tmp_path), getattr(torch, function)(x)
    equal = same(got, want)
    plain = want.isfinite() & got.isfinite() & (want != 0)
    smallest = torch.finfo(dtype).smallest_normal
    equal |= plain & ((got - want).abs() <= 8 * torch.finfo(dtype).eps * want.abs() + smallest * torch.finfo(dtype).eps)
    assert equal.all(), [(float(x[k]), float(got[k]), float(want[k])) for k in torch.nonzero(~equal).flatten()]


@pytest.mark.skipif(numpy.finfo(numpy.longdouble).nmant < 63, reason="needs wider numbers than doubles")
@pytest.mark.parametrize("isa", ISAS)
def test_powers_of_floats_everywhere(isa: str, tmp_path: Path) -> None:
    """All sizes of bases, exponents that make of them numbers of all sizes, results below the normal numbers too."""
    g = torch.Generator().manual_seed(9)
    unit, normal = torch.rand(20_000, generator=g), torch.randn(20_000, generator=g)
    bits = torch.randint(1 << 23, 0x7F800000, (20_000,), generator=g, dtype=torch.int32)
    bases = torch.cat((unit * 4, unit * 1e-3 + 0.9995, bits.view(torch.float32), unit + 0.5, unit + 0.5, unit * 2))
    exponents = torch.cat(
        (normal * 3, normal * 4e4, normal, normal * 60, normal.round() * 20, torch.full((20_000,), -0.75))
    )
    wide = bases.numpy().astype(numpy.longdouble), exponents.numpy().astype(numpy.longdouble)
    with numpy.errstate(all="ignore"):
        want = wide[0] ** wide[1]
        rounded = want.astype(numpy.float32)
        got = run("pow", [bases, exponents], isa, tmp_path).numpy()
        plain = numpy.isfinite(rounded) & (numpy.abs(rounded) >= 1e-45)
        errors = numpy.abs(got - want)[plain] / numpy.spacing(rounded[plain]).astype(numpy.longdouble)
    assert errors.max() <= 0.6
    assert numpy.array_equal(got[~plain], rounded[~plain])


@pytest.mark.parametrize("isa", ISAS)
def test_powers_of_edges_are_eagers(isa: str, tmp_path: Path) -> None:
    edges = [*EDGES, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1.1754944e-38, -1.1754944e-38, 3.4e38, 16777217.0, -16777215.0]
    pairs = torch.tensor(list(itertools.product(edges, edges)))
    bases, exponents = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    got, want = run("pow", [bases, exponents], isa, tmp_path), torch.pow(bases, exponents)
    equal = same(got, want) | (want.isfinite() & got.isfinite() & ((got - want).abs() <= 1.2e-7 * want.abs()))
    equal |= (want.abs() < 1.2e-38) & ((got - want).abs() <= 1.5e-45)
    assert equal.all(), [(float(bases[k]), float(exponents[k]), float(got[k])) for k in torch.nonzero(~equal).flatten()]
