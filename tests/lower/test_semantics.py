"""Edge values: NaN, infinities, signed zeros, booleans, integers, and errors, as eager has them."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf, nan

import pytest
import torch
import torch.nn.functional as F

from benchmarks.compilers import CompileFunction
from lamina.base.dtypes import dtype_of
from lamina.ir.loops import Check, Compute, Nest
from lamina.ir.loops_interp import run_program
from lamina.lower import pointwise_math
from lamina.lower.comparison import rounded
from lamina.lower.to_loops import lower

from .harness import check, outcome
from .torch_private import traced

aten = torch.ops.aten
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, -3.0, 6.0, 20.5, -30.0, 100.0, inf, -inf, nan])
INTEGERS = torch.tensor([0, 1, -1, 2, -7, 7, 100, -128, 127, 2**31, -(2**63)])

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "relu6": F.relu6,
    "clamp": lambda x: torch.clamp(x, -1.0, 2.0),
    "clamp_low": lambda x: torch.clamp(x, min=0.0),
    "hardtanh": F.hardtanh,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "softplus": F.softplus,
    "threshold": lambda x: F.threshold(x, 0.5, 7.0),
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 2.0),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "logsigmoid": F.logsigmoid,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "sign": torch.sign,
    "round": torch.round,
    "trunc": torch.trunc,
    "frac": torch.frac,
    "nan_to_num": torch.nan_to_num,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
    "isposinf": torch.isposinf,
    "isneginf": torch.isneginf,
    "signbit": torch.signbit,
    "logical_not": torch.logical_not,
    "to_bool": lambda x: x.bool(),
    "to_half": lambda x: x.half(),
    "angle": torch.angle,
    "entr": torch.special.entr,
    "xlogy": lambda x: torch.xlogy(x, 2.0),
    "sinc": torch.sinc,
    "pow_half": lambda x: x**0.5,
    "pow_minus_half": lambda x: x**-0.5,
    "pow_two": lambda x: x**2,
    "pow_three": lambda x: x**3,
    "pow_five": lambda x: x**5,
    "pow_minus_three": lambda x: x**-3,
    "pow_three_halves": lambda x: x**1.5,
    "pow_minus_three_halves": lambda x: x**-1.5,
    "pow_five_halves": lambda x: x**2.5,
    "pow_minus_five_halves": lambda x: x**-2.5,
    "pow_minus_one": lambda x: x**-1,
    "pow_minus_two": lambda x: x**-2,
    "pow_zero": lambda x: x**0,
    "pow_fraction": lambda x: x**1.7,
    "pow_base": lambda x: 2.0**x,
    "floor_divide": lambda x: torch.div(x, 0.3, rounding_mode="floor"),
    "trunc_divide": lambda x: torch.div(x, -0.3, rounding_mode="trunc"),
    "divide_by_zero": lambda x: x / 0,
    "remainder": lambda x: torch.remainder(x, -1.5),
    "fmod": lambda x: torch.fmod(x, -1.5),
    "masked_fill": lambda x: x.masked_fill(x > 0, -inf),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "max": lambda x: x.max(),
    "amin": lambda x: x.amin(),
    "argmax": lambda x: x.argmax(),
    "nansum": torch.nansum,
    "softmax": lambda x: F.softmax(x, 0),
    "log_softmax": lambda x: F.log_softmax(x[:12], 0),
    "logsumexp": lambda x: x[:12].logsumexp(0),
    "logsumexp_infinite": lambda x: x[12:14].logsumexp(0),
    "norm": lambda x: x[:12].norm(),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, inf),
    "norm_zero": lambda x: torch.linalg.vector_norm(x, 0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name: str, dtype: torch.dtype) -> None:
    found = outcome(FUNCTIONS[name], [SPECIAL.to(dtype)])
    assert not found.complaints
    assert found.nests
    assert not [c for c in found.library if "slice" not in c[0]]


def _operations(function: Callable[..., torch.Tensor], given: list[torch.Tensor], numerics: str = "fast") -> list[str]:
    program = lower(traced(function, given), "test", numerics)
    return [e.op for nest in program.steps if isinstance(nest, Nest) for e in nest.body if isinstance(e, Compute)]


@pytest.mark.parametrize("exponent", [1.5, -1.5, 2.5, -2.5, 3, -3, 4, 5, 6, 7, 8, -8])
def test_a_power_of_few_products_is_no_logarithm(exponent: float) -> None:
    x = torch.cat([torch.rand(2000, dtype=torch.float64) * 9, -torch.rand(2000, dtype=torch.float64)])
    assert "pow" not in _operations(lambda x: x**exponent, [x])
    assert ("pow" in _operations(lambda x: x**exponent, [x], "eager")) is (exponent != 3)
    (result,) = run_program(lower(traced(lambda x: x**exponent, [x]), "test"), [x])
    torch.testing.assert_close(result, x**exponent, rtol=4 * torch.finfo(x.dtype).eps, atol=0, equal_nan=True)


def test_mish_and_its_gradient_take_no_logarithm() -> None:
    x = torch.linspace(-60, 60, 2001, dtype=torch.float64)
    gradient = aten.mish_backward
    for function, given in ((F.mish, [x]), (gradient, [torch.ones_like(x), x])):
        taken = _operations(function, given)
        assert taken.count("exp") == 1
        assert not {"log1p", "tanh"} & set(taken)
        (result,) = run_program(lower(traced(function, given), "test"), given)
        torch.testing.assert_close(result, function(*given), rtol=1e-14, atol=2e-14)


@pytest.mark.parametrize("bounds", [{"max": nan}, {"min": nan}, {"min": 0.0, "max": nan}], ids=str)
def test_a_bound_that_is_no_number_is_left_to_eager(bounds: dict[str, float]) -> None:
    found = outcome(lambda x: torch.clamp(x, **bounds), [SPECIAL])
    assert not found.complaints
    assert "not a number" in found.library[0][1]


@pytest.mark.parametrize("function", [F.relu6, lambda x: x.clamp(0.0, 1.0), lambda x: x.clamp(max=-0.0), F.hardtanh])
def test_a_bound_of_zero_keeps_the_sign_of_zero(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.tensor([0.0, -0.0] * 20)
    (result,) = run_program(lower(traced(function, [x]), "test"), [x])
    assert torch.equal(torch.signbit(result), torch.signbit(function(x)))


@pytest.mark.parametrize("other", [SPECIAL.flip(0), SPECIAL.roll(5)], ids=["flipped", "rolled"])
@pytest.mark.parametrize(
    "name",
    [
        *("maximum", "minimum", "fmax", "fmin", "copysign", "atan2", "hypot", "nextafter", "logaddexp", "logaddexp2"),
        *("xlogy", "heaviside", "remainder", "fmod", "pow", "eq", "ne", "lt", "le", "gt", "ge", "logical_xor"),
    ],
)
def test_special_pairs(name: str, other: torch.Tensor) -> None:
    check(getattr(torch, name), SPECIAL, other)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("floor", lambda x: torch.div(x, 3, rounding_mode="floor")),
        ("floor_negative", lambda x: torch.div(x, -3, rounding_mode="floor")),
        ("trunc", lambda x: torch.div(x, -3, rounding_mode="trunc")),
        ("remainder", lambda x: torch.remainder(x, -3)),
        ("fmod", lambda x: torch.fmod(x, -3)),
        ("true_division", lambda x: x / 3),
        ("pow", lambda x: x**5),
        ("pow_large", lambda x: x**63),
        ("square_root", torch.sqrt),
        ("sign", torch.sign),
        ("signbit", torch.signbit),
        ("isnan", torch.isnan),
        ("round", torch.round),
        ("to_uint8", lambda x: x.to(torch.uint8)),
        ("to_float", lambda x: x.float()),
        ("sum", torch.sum),
        ("sum_int32", lambda x: x.to(torch.int32).sum()),
        ("prod", torch.prod),
        ("mean", lambda x: x.mean(dtype=torch.float32)),
        ("shift", lambda x: (x << 3) ^ (x >> 2)),
        ("invert", torch.bitwise_not),
        ("compare_float", lambda x: x > 1.5),
        ("mul_float", lambda x: x * 1.5),
        ("clamp_float", lambda x: x.clamp(-1.5, 2.5)),
        ("max_dim", lambda x: x.reshape(1, -1).max(1)),
        ("count_nonzero", torch.count_nonzero),
        ("any", torch.any),
        ("sqrt_mean", lambda x: x.double().mean()),
    ],
)
def test_integers(name: str, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    check(function, INTEGERS)


@pytest.mark.parametrize("function", [lambda x: 2.0**x, lambda x: torch.ldexp(x, x.round())])
def test_powers_of_two(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A function of its own is several times as fast as a power of any base; eager's numerics keep eager's."""
    check(function, torch.cat([SPECIAL, torch.arange(-160.0, 140.0, 0.75)]))
    for numerics, other in (("fast", "pow"), ("eager", "exp2")):
        steps = lower(traced(function, [SPECIAL]), "test", numerics).steps
        assert not any(getattr(e, "op", "") == other for step in steps if isinstance(step, Nest) for e in step.body)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_whole_exponents_beyond_the_type_of_the_number(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, -0.0, 1e-30, 1e30, -3.0, 1e-40, inf, nan]).to(dtype)
    for power in (-2000, -300, -150, -149, -14, 0, 127, 128, 200, 300, 2000):
        check(lambda x, n: torch.ldexp(x, n), values, torch.full((8,), power))


def test_what_torch_does_with_whole_exponents_is_asked_of_real_tensors(compile: CompileFunction) -> None:
    """Also in the middle of a compilation, whose tensors have no numbers."""
    pointwise_math._scales_by_steps.cache_clear()
    x = torch.randn(4, 6)
    assert torch.equal(compile(lambda x: torch.ldexp(x, torch.tensor(3)))(x), x * 8)


@pytest.mark.parametrize("loss", [F.huber_loss, F.smooth_l1_loss])
def test_gradients_of_losses_of_nan(loss: Callable[..., torch.Tensor]) -> None:
    gradient = lambda x: torch.func.grad(lambda x: loss(x, torch.zeros_like(x), reduction="sum"))(x)  # noqa: E731
    check(gradient, torch.tensor([nan, inf, -inf, 0.0, 1.0, -1.0, 2.0, 0.5]))


@pytest.mark.parametrize("gradient", [1.0, -1.0, 0.0])
def test_gradients_of_logit_at_its_ends(gradient: float) -> None:
    ends = torch.tensor([0.0, -0.0, 1.0, 0.5, nan, -1.0, 2.0, 0.25])
    check(lambda g, x: torch.ops.aten.logit_backward(g, x, None), torch.full((8,), gradient), ends)


def test_the_first_of_zeros_in_a_window_is_its_maximum() -> None:
    zeros = torch.tensor([[[0.0, -0.0, 0.0, -0.0, -0.0, 0.0]]])
    check(lambda x: F.max_pool1d(x, 2, 1), zeros)
    check(lambda x: F.max_pool2d(x, (1, 3), 1), zeros)


def test_rrelu_in_evaluation() -> None:
    check(lambda x: F.rrelu(x, 0.1, 0.3, training=False), SPECIAL)


def test_uint8_wraps_around() -> None:
    x = torch.tensor([0, 1, 5, 250, 255], dtype=torch.uint8)
    check(lambda x: (x + 10, x - 10, x * 3, -x, x.sum(), x.abs(), x.sign(), x.any()), x)


def test_booleans() -> None:
    x, y = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    check(
        lambda x, y: (
            *(x + y, x * y, x & y, x | y, x ^ y, ~x, x < y, x <= y, x == y, x.sum(), x.any(), x.all(), x.max()),
            *(torch.maximum(x, y), torch.minimum(x, y), x + 1, x * 2.5, x.to(torch.bfloat16), x.sign()),
        ),
        x,
        y,
    )


def test_a_python_number_is_rounded_to_the_tensors_type_in_comparisons() -> None:
    x = torch.tensor([0.1, 0.2, 0.3], dtype=torch.bfloat16)
    check(lambda x: (x == 0.1, x >= 0.2, x < 0.3), x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_python_numbers_are_rounded_as_torch_rounds_them(dtype: torch.dtype) -> None:
    generator = random.Random(0)
    numbers = [generator.uniform(-1, 1) * 10.0 ** generator.randint(-9, 9) for _ in range(2000)]
    numbers += [0.0, -0.0, inf, -inf, 1e39, -1e300, 65519.9, 65520.0, 3.3895e38, 1.00390625, 1.01171875, 5e-8]
    for number in numbers:
        mine = rounded(number, dtype_of(dtype))
        assert str(mine) == str(torch.tensor(number, dtype=dtype).item())


def test_type_promotion() -> None:
    i, h, f = torch.arange(-3, 3, dtype=torch.int32), torch.randn(6).bfloat16(), torch.randn(6)
    zero = torch.tensor(1.1, dtype=torch.float64)
    check(
        lambda i, h, f, z: (i + h, h * f, i < h, h >= f, h * z, i * z, torch.where(i > 0, h, f), i / i.abs()),
        i,
        h,
        f,
        zero,
    )


@pytest.mark.parametrize("op", [torch.remainder, torch.fmod, torch.floor_divide])
def test_division_by_an_integer_tensor_raises_where_it_holds_a_zero(op: Callable[..., torch.Tensor]) -> None:
    x, y = torch.tensor([3, 4]), torch.tensor([2, 0])
    program = lower(traced(op, [x, y]), "test")
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        run_program(program, [x, y])
    check(op, x, torch.tensor([2, 3]))
    check(op, torch.tensor([-7, 7, -(2**31)], dtype=torch.int32), torch.tensor(-2, dtype=torch.int32))


@pytest.mark.parametrize("op", [torch.remainder, torch.fmod, torch.floor_divide])
def test_division_of_nothing_by_zero_is_no_error(op: Callable[..., torch.Tensor]) -> None:
    check(lambda x, y: op(x, y).sum(), torch.zeros(0, 3, dtype=torch.int64), torch.tensor(0))


@pytest.mark.parametrize("op", [torch.remainder, torch.fmod, torch.floor_divide])
def test_integer_division_by_the_number_zero_raises(op: Callable[..., torch.Tensor]) -> None:
    program = lower(traced(lambda x: op(x, 0), [torch.tensor([3, 4])]), "test")
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        run_program(program, [torch.tensor([3, 4])])


def test_empty_tensors() -> None:
    check(lambda x: (x.sum(), x.sum(0), x.mean(), x.prod(), x.any(), x.all(), x.sum(1)), torch.zeros(0, 3))
    found = outcome(lambda x: (x + 1, F.softmax(x, 1), F.layer_norm(x, (3,))), [torch.zeros(0, 3)])
    assert not found.complaints
    assert not found.library


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("wrong", [-1, 4])
def test_a_class_out_of_range_raises_index_error(reduction: str, wrong: int) -> None:
    x, target = torch.randn(3, 4), torch.tensor([0, wrong, 2])
    program = lower(traced(lambda x, t: F.nll_loss(x, t, reduction=reduction), [x, target]), "test")
    assert any(isinstance(e, Check) for s in program.steps if isinstance(s, Nest) for e in s.body)
    with pytest.raises(IndexError, match="out of bounds"):
        run_program(program, [x, target])


def test_an_ignored_class_may_be_out_of_range() -> None:
    x, target, weight = torch.randn(5, 4), torch.tensor([0, -100, 2, 3, -100]), torch.rand(4)
    check(lambda x, t, w: F.nll_loss(x, t, w), x, target, weight)
    check(lambda x, t: F.nll_loss(x, t, ignore_index=2, reduction="none"), x, torch.tensor([0, 2, 2, 3, 1]))
    check(lambda x, t: F.nll_loss(x, t, ignore_index=17), x, torch.full((5,), 17))


def test_sums_without_nan() -> None:
    x = torch.tensor([[1.0, nan, 2.0], [nan, nan, nan], [3.0, 4.0, 5.0]])
    check(lambda x: (x.nansum(), x.nansum(0), x.nansum(1)), x)


@pytest.mark.parametrize("function", [lambda x: x.mean(1), lambda x: x.mean(0, keepdim=True), lambda x: x.mean()])
def test_means_count_what_is_summed(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    check(function, torch.randn(3, 5))


@pytest.mark.parametrize("order", [-inf, inf, 0, 1, 2, 3])
def test_orders_of_norms(order: float) -> None:
    check(lambda x: torch.linalg.vector_norm(x, order, 1), torch.tensor([[3.0, -4.0, 0.5], [-0.25, 1.0, -2.0]]))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
def test_sums_of_integers_do_not_wrap_around(dtype: torch.dtype) -> None:
    x = torch.full((3, 300), 1).mul(2**31 - 1).to(dtype)
    check(lambda x: (x.sum(), x.sum(1), x.prod(1) if x.dtype == torch.bool else x.sum(0)), x)


@pytest.mark.parametrize("name", ["softshrink", "hardshrink"])
def test_gradients_of_shrinking_at_their_edges(name: str) -> None:
    backward = getattr(torch.ops.aten, f"{name}_backward")
    check(lambda g, x: backward(g, x, 0.5), torch.ones(6), torch.tensor([-1.0, -0.5, -0.25, 0.25, 0.5, 1.0]))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_an_ignored_class_has_no_gradient(reduction: str) -> None:
    number = {"none": 0, "mean": 1, "sum": 2}[reduction]
    grad = torch.rand(4) if reduction == "none" else torch.rand(())

    def backward(g: torch.Tensor, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.nll_loss_backward(g, x, t, None, number, 2, x.new_tensor(3.0))

    check(backward, grad, torch.randn(4, 3), torch.tensor([0, 2, 1, 2]))
