"""Element types and special values: promotion, wrap-around, division, infinities, NaN and signed zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.compilers import CompileFunction
from tests.semantics.program import agree

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
HALVES = [torch.bfloat16, torch.float16]
FLOATS = [*HALVES, torch.float32, torch.float64]
EVERYTHING = [torch.bool, *INTEGERS, *FLOATS, torch.complex64]


def _sample(dtype: torch.dtype, *shape: int) -> Tensor:
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_complex or dtype.is_floating_point:
        return torch.randn(shape, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
    low = 0 if dtype == torch.uint8 else -50
    return torch.randint(low, 60, shape, dtype=dtype)


@pytest.mark.sampled(one_in=18)
@pytest.mark.parametrize("left", EVERYTHING, ids=str)
@pytest.mark.parametrize("right", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32], ids=str)
def test_promotion(compile: CompileFunction, left: torch.dtype, right: torch.dtype) -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        results = [x * y, x + y, x + 1, x * 2.5, x == y, torch.where(y.bool(), x, 3), x / (y + 0.5)]
        if torch.bool not in (left, right):
            results.append(x - y)
        return tuple(results)

    agree(compile, lambda: (program, (_sample(left, 5, 3), _sample(right, 5, 3))))


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(compile: CompileFunction, dtype: torch.dtype) -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        small = y.clamp(1, 7)
        return (
            x * x * x,
            x // small,
            x % small,
            torch.div(x, small, rounding_mode="trunc"),
            torch.fmod(x, small),
            x << small.clamp(max=3),
            x >> 1,
            x & y,
            x | y,
            x ^ y,
            ~x,
            x.abs(),
            -x,
            x.sum(),
            x.sum(0, dtype=dtype),
            x.prod(1),
            x.amax(1),
            x.amin(0),
            x.argmax(1),
            x.cumsum(0),
            x.float().sin().to(dtype),
            x.clamp(-3, 100),
            x**2,
            (x > y).sum(),
            x.bool(),
            torch.minimum(x, y),
        )

    agree(compile, lambda: (program, (_sample(dtype, 6, 37), _sample(dtype, 6, 37))), exact=False, strides=False)


def test_floor_division_of_negative_integers(compile: CompileFunction) -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x // y, x % y, torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y), torch.remainder(-x, y)

    x = torch.arange(-20, 21)
    y = torch.where(x % 3 == 0, 3, torch.where(x % 3 == 1, -4, 7))
    agree(compile, lambda: (program, (x.clone(), y.clone())), exact=False)
    agree(compile, lambda: (program, (x.float(), y.float())), exact=False)


def test_integer_wrap_around(compile: CompileFunction) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return x + 1, x * x, -x, x.abs(), x - 1, x.sum(), x.cumsum(0)

    for dtype in INTEGERS:
        limits = torch.iinfo(dtype)
        values = torch.tensor([limits.min, limits.max, 0, 1, limits.max - 1, limits.min + 1], dtype=dtype)
        agree(compile, lambda v=values: (program, (v.clone(),)), exact=False)


def test_booleans(compile: CompileFunction) -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x & y, x | y, x ^ y, ~x, x.any(1), x.all(0), x.sum(), x + y, x * y, x == y, x.int() - 3

    agree(compile, lambda: (program, (_sample(torch.bool, 9, 33), _sample(torch.bool, 9, 33))), exact=False)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floating_types(compile: CompileFunction, dtype: torch.dtype) -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.nn.functional.gelu(x) * y,
            x.softmax(-1),
            torch.nn.functional.layer_norm(x, (19,)),
            x.sum(),
            x.mean(0),
            x.var(1),
            torch.logsumexp(x, 1),
            x.square().sum(1).rsqrt(),
            x.cumsum(1),
        )

    def build() -> Any:
        return program, (_sample(dtype, 7, 19).requires_grad_(), _sample(dtype, 7, 19).requires_grad_())

    agree(compile, build, floor=8)


def test_complex_numbers(compile: CompileFunction) -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x * y + 1j, x.abs(), x.angle(), x.conj() * y, x.real, torch.view_as_real(x @ y.t()), x.sum(0), x.exp()

    def build() -> Any:
        return program, tuple(torch.randn(4, 5, dtype=torch.complex64, requires_grad=True) for _ in range(2))

    agree(compile, build)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("shape", [(4, 5), ()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_gradient_of_a_product_with_a_complex_number(
    compile: CompileFunction, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return (0.3j * x).abs(), torch.view_as_real((2 - 0.1j) * torch.exp(1j * x)), (x / (1 + 2j)).abs()

    agree(compile, lambda: (program, (_sample(dtype, *shape).requires_grad_(),)))


INF, NAN = float("inf"), float("nan")
SPECIAL = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1e-45, -1e-45, 3e38, -3e38, 88.8, -104.0, 0.5, 2.5]

UNARY = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "frac",
    "isfinite",
    "isinf",
    "isnan",
    "log",
    "log10",
    "log1p",
    "log2",
    "logical_not",
    "neg",
    "reciprocal",
    "relu",
    "round",
    "rsqrt",
    "sgn",
    "sigmoid",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
    "lgamma",
    "digamma",
    "nan_to_num",
]

BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "atan2",
    "fmod",
    "remainder",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "hypot",
    "copysign",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "floor_divide",
    "logaddexp",
    "xlogy",
    "logical_and",
    "nextafter",
    "heaviside",
    "ldexp",
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_special_values_of_functions_of_one_number(compile: CompileFunction, dtype: torch.dtype) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        # Eager's vector code overflows in sinh and cosh before their results do.
        near = x.clamp(-88, 88)
        return tuple(getattr(torch, name)(near if name in ("sinh", "cosh") else x) for name in UNARY)

    agree(compile, lambda: (program, (torch.tensor(SPECIAL * 3).to(dtype),)), exact=False)
    x = torch.tensor([0.0, -0.0, -INF])
    signs = compile(lambda t: (-t, t * 1, t.sqrt(), 1 / t, t.round()), dynamic=False)(x)
    for mine, theirs in zip(signs, (-x, x * 1, x.sqrt(), 1 / x, x.round()), strict=True):
        assert torch.equal(mine.signbit() | mine.isnan(), theirs.signbit() | theirs.isnan())


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("name", BINARY)
def test_special_values_of_functions_of_two_numbers(compile: CompileFunction, name: str) -> None:
    values = torch.tensor(SPECIAL)
    pairs = torch.cartesian_prod(values, values)
    if name in ("fmod", "remainder"):  # eager's vector code gives NaN where the quotient overflows
        x, y = pairs.unbind(1)
        pairs = pairs[~((x / y).isinf() & x.isfinite() & (y != 0))]
    function = getattr(torch, name)
    agree(compile, lambda: (lambda x, y: function(x, y), (pairs[:, 0].clone(), pairs[:, 1].clone())), exact=False)


REDUCTIONS = {
    "max": lambda x: x.amax(1),
    "min": lambda x: x.amin(0),
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(0),
    "max_with_index": lambda x: tuple(x.max(1)),
    "sum": lambda x: x.sum(1),
    "prod": lambda x: x.prod(1),
    "softmax": lambda x: x.softmax(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "cummax": lambda x: tuple(x.cummax(1)),
    "norm": lambda x: x.norm(dim=1),
    "any": lambda x: x.any(1),
    "relu_and_clamp": lambda x: (x.relu(), x.clamp(-1, 1), x.clamp(min=0.5)),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("program", list(REDUCTIONS.values()), ids=list(REDUCTIONS))
def test_special_values_in_reductions(compile: CompileFunction, program: Any) -> None:
    def build() -> Any:
        x = torch.randn(6, 40)
        x[0, 5], x[1, 39], x[2, 0], x[3, 7], x[3, 8] = NAN, INF, -INF, INF, -INF
        x[4] = -INF
        return program, (x,)

    agree(compile, build)


def test_ties_take_the_index_that_eager_takes(compile: CompileFunction) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return x.argmax(1), x.argmin(1), x.argmax(), x.max(0).indices, x.argmax(0)

    agree(compile, lambda: (program, (torch.randint(0, 3, (16, 70)).float(),)), exact=False)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("target", [torch.int32, torch.int64, torch.bool, torch.bfloat16, torch.float16], ids=str)
def test_conversions(compile: CompileFunction, source: torch.dtype, target: torch.dtype) -> None:
    values = torch.tensor([0.0, -0.0, 0.4, -0.6, 1.5, 2.5, -3.5, 100.0, -127.0, 65504.0]).to(source)
    agree(compile, lambda: (lambda x: x.to(target), (values.clone(),)), exact=False)


def test_rounding_to_bfloat16_is_to_nearest_even(compile: CompileFunction) -> None:
    bits = torch.randint(-(2**31), 2**31 - 1, (4096,), dtype=torch.int64).to(torch.int32)
    x = bits.view(torch.float32)
    agree(compile, lambda: (lambda t: (t.bfloat16(), (t * 1).to(torch.float16)), (x.clone(),)), exact=False)


ROUNDED: dict[str, Any] = {
    "back": lambda x, h: h.float(),
    "difference": lambda x, h: x - h,
    "distance": lambda x, h: F.mse_loss(x, h, reduction="none"),
    "view": lambda x, h: x.flip(0).view(-1, 1) - h.flip(0).view(-1, 1),
    "joined": lambda x, h: torch.cat([h, x]),
    "selected": lambda x, h: torch.where(x > 8, h, x),
    "exact": lambda x, h: (-h).abs().double(),
    "step": lambda x, h: h.floor(),
    "compared": lambda x, h: h > 7.1,
    "limits": lambda x, h: (h.isinf(), h.sign(), 1 / h),
}


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ROUNDED)
def test_what_the_program_rounds_itself_is_rounded(name: str, dtype: torch.dtype, compile: CompileFunction) -> None:
    """Kernels keep float32 where eager has a half type, but not where the program casts to one and that is seen."""
    x = torch.tensor([7.1, 20001.0, 7e4, 2.9999, 1e-9])

    def function(x: Tensor) -> Any:
        return ROUNDED[name](x, x.to(dtype))

    torch.testing.assert_close(compile(function)(x), function(x), rtol=1e-6, atol=0)


def test_readers_that_meet_again_are_looked_at_once(compile: CompileFunction) -> None:
    """Each step doubles the ways from the cast to what comes after it."""

    def function(x: Tensor) -> Tensor:
        rounded = x.to(torch.bfloat16)
        for _ in range(40):
            rounded = torch.cat([rounded, rounded.flip(0)])[2:6]
        return rounded

    x = torch.tensor([7.1, 0.3, 2.9999, 1e-9])
    torch.testing.assert_close(compile(function)(x), function(x), rtol=0, atol=0)


MIXED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda i, x: i + x,
    "difference": lambda i, x: i - x,
    "difference, reversed": lambda i, x: torch.rsub(i, x),
    "product": lambda i, x: i * x,
    "quotient": lambda i, x: i / x,
    "power": lambda i, x: i**x,
    "choice": lambda i, x: torch.where(i > 3, i, x) - x,
}


@pytest.mark.parametrize("name", MIXED)
def test_integers_beyond_float16_are_infinite_beside_it(name: str, compile: CompileFunction) -> None:
    integers = torch.tensor([2**62, -(2**62), 70000, 1, -70000])
    halves = torch.tensor([torch.inf, -torch.inf, 60000.0, 2.0, -torch.inf], dtype=torch.float16)
    torch.testing.assert_close(
        compile(MIXED[name])(integers, halves), MIXED[name](integers, halves), equal_nan=True, rtol=1e-3, atol=0
    )
