"""Short innermost axes and elements that take turns in memory: programs on several shapes, types and instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import lamina
from lamina.base.target import cpu
from lamina.ir.plan import Schedule
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan
from lamina.testing import judge

Program = Callable[..., Any]


def corners(a: Tensor, b: Tensor) -> Tensor:
    """The area in which each box of one set meets each of another."""
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    size = (torch.minimum(a[:, None, 2:], b[None, :, 2:]) - low).clamp(min=0)
    return size[..., 0] * size[..., 1]


PROGRAMS: dict[str, tuple[Program, tuple[tuple[int, ...], ...]]] = {
    "corners of boxes": (corners, ((9, 4), (21, 4))),
    "stack of two": (lambda a, b: torch.stack([a * b, a - b], -1), ((5, 37), (5, 37))),
    "stack of three": (lambda a, b: torch.stack([a * b, a - b, a], -1), ((5, 37), (5, 37))),
    "stack of four": (lambda a, b: torch.stack([a * b, a - b, a, b.exp()], -1) * 2, ((33,), (33,))),
    "pairs that are turned": (
        lambda x, c, s: torch.stack([x[..., 0::2] * c - x[..., 1::2] * s, x[..., 1::2] * c + x[..., 0::2] * s], -1),
        ((3, 7, 34), (7, 17), (7, 17)),
    ),
    "pairs that are turned and joined": (
        lambda x, c: torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2) * c + x,
        ((3, 7, 34), (7, 34)),
    ),
    "every third": (lambda x: x[:, 1::3] * 2 + x[:, 0::3], ((4, 60),)),
    "pixels out of channels": (lambda x: F.pixel_shuffle(x, 2) * 2, ((2, 12, 5, 19),)),
    "pixels into channels": (lambda x: F.pixel_unshuffle(x, 3) + 1, ((2, 2, 9, 51),)),
    "rows that are repeated": (lambda x, y: torch.hypot(x, y).repeat_interleave(2, 1) + 1, ((3, 5, 27), (3, 5, 27))),
    "planes that are repeated": (lambda x: x.exp()[:, None, None].expand(-1, 3, 2, -1).contiguous(), ((7, 37),)),
    "rows of three": (lambda x: x / (x.norm(dim=-1, keepdim=True) + 1), ((41, 3),)),
    "rows of four": (lambda x: x.softmax(-1), ((5, 41, 4),)),
    "sums of two": (lambda x: (x * 2).sum(-1), ((5, 41, 2),)),
    "places of the largest of three": (lambda x: x.argmax(-1), ((41, 3),)),
    "a vector product": (lambda a, b: torch.cross(a, b, dim=-1), ((41, 3), (41, 3))),
    "products of small matrices": (lambda a, b: (a[..., None] * b[:, None, :]).sum(1), ((41, 3), (41, 3))),
    "channels last": (
        lambda x: (x.permute(0, 2, 3, 1) * 2 + 1).contiguous(),
        ((2, 3, 9, 11),),
    ),
    "a short axis that is broadcast": (lambda a, b: a[..., None] * b, ((37,), (3,))),
    "the picked and the whole": (lambda a: ((s := (a * 2).tanh())[..., 0] + s[..., 1], s), ((37, 2),)),
    "rows of six": (lambda x: (x * 0.5).softmax(-1), ((5, 41, 6),)),
    "rows of seven": (lambda x: F.normalize(x, dim=-1), ((41, 7),)),
    "weighted means of five": (lambda x, w: (x * w).mean(-1).tanh(), ((9, 40, 5), (5,))),
    "the largest of eight": (lambda x, b: (x + b).view(5, 16, 8).amax(-1), ((5, 128), (128,))),
    "the largest of six and its place": (lambda x: tuple(x.max(-1)), ((5, 41, 6),)),
    "the place of the least of five": (lambda x: x.argmin(-1), ((5, 41, 5),)),
    "stack of seven": (lambda a, b: torch.stack([a * b, a - b, a, b, a + b, b - a, a * a], -1), ((5, 37), (5, 37))),
    "every sixth": (lambda x: x[:, 1::6] * 2 + x[:, 5::6], ((4, 222),)),
    "halves of rows of ten": (
        lambda x, f: torch.cat([(y := x[..., None] * f).sin(), y.cos()], -1),
        ((5, 37), (5,)),
    ),
    "parts of rows of 21": (
        lambda x: torch.cat([x, *(f(x * 2**k) for k in range(3) for f in (torch.sin, torch.cos))], -1),
        ((37, 3),),
    ),
    "rows of five and a number for each column": (lambda x, b: torch.tanh(x * 2 + b), ((41, 5), (5,))),
    "windows of three by three": (
        lambda x, b: (x[:, :, ::2].unfold(1, 3, 2).exp() + b) * 2,
        ((7, 9, 6), (3,)),
    ),
    "written in turns": (lambda a: a.clone().index_fill_(-1, torch.tensor([1]), 3.0) + 1, ((19, 2),)),
}


def _written(a: Tensor, b: Tensor) -> Tensor:
    a[:, 0] = b[:, 1] * 2
    a[:, 1] += a[:, 0]
    return a * b


PROGRAMS["columns that are written"] = (_written, ((37, 2), (37, 2)))


def _check(name: str, dtype: torch.dtype, **options: Any) -> None:
    function, shapes = PROGRAMS[name]
    torch.manual_seed(0)
    arguments = [(torch.randn(s) * 3).to(dtype) for s in shapes]
    torch.compiler.reset()
    compiled = lamina.compile(function, options={"strict": True, **options})
    given, expected_given = ([x.clone() for x in arguments] for _ in range(2))
    found, expected = compiled(*given), function(*expected_given)
    pairs = zip([found, *given], [expected, *expected_given], strict=True)
    for ours, eagers in pairs:
        torch.testing.assert_close(ours, eagers)
        for one, other in zip(*(x if isinstance(x, tuple) else (x,) for x in (ours, eagers)), strict=True):
            assert one.stride() == other.stride()


@pytest.mark.sampled(one_in=24)
@pytest.mark.parametrize("simd", ["auto", "avx2", "plain"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_short_axes(name: str, simd: str) -> None:
    _check(name, torch.float32, simd=simd)


_TURNS = (
    *("stack of two", "stack of three", "stack of seven", "every third", "every sixth", "columns that are written"),
)


@pytest.mark.sampled(one_in=12)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("name", _TURNS)
def test_elements_that_take_turns(name: str, dtype: torch.dtype) -> None:
    _check(name, dtype)


GRADIENTS: dict[str, tuple[Program, tuple[tuple[int, ...], ...]]] = {
    "pairs that are turned": PROGRAMS["pairs that are turned"],
    "gates that take turns": (lambda x: x[..., ::2] * F.silu(x[..., 1::2]), ((5, 64),)),
    "every third": (lambda x: x[:, 1::3] * x[:, 0::3], ((4, 60),)),
    "every third of an odd row": (lambda x: x[:, ::3] * 2, ((4, 61),)),
    "elements that are repeated": (lambda x: x.repeat_interleave(2, -1) * 2, ((5, 33),)),
    "pixels that are repeated": (lambda x: F.interpolate(x, scale_factor=2) * 2, ((2, 3, 9, 17),)),
    "rows of three": PROGRAMS["rows of three"],
    "stack of three": PROGRAMS["stack of three"],
    "rows of six": PROGRAMS["rows of six"],
    "the largest of eight": PROGRAMS["the largest of eight"],
    "halves of rows of ten": PROGRAMS["halves of rows of ten"],
    "parts of rows of 21": PROGRAMS["parts of rows of 21"],
    "corners of boxes": PROGRAMS["corners of boxes"],
    "a vector product": PROGRAMS["a vector product"],
    "elements of pairs": (lambda x: torch.sigmoid(x[..., 0]) * torch.tanh(x[..., 1]), ((5, 41, 2),)),
    "one element of three": (lambda x: x[..., 1].exp() * 2, ((5, 41, 3),)),
    "parts of a first axis": (lambda x: x.unbind(0)[0] * x[1].exp() + x[2], ((3, 5, 41),)),
    "pixels out of channels, then a number for each": (
        lambda x, b: (y := F.pixel_shuffle(F.gelu(x), 2)) * torch.sigmoid(y + b[:, None, None]),
        ((2, 12, 9, 24), (3,)),
    ),
    "a number for each of five columns": (lambda x, b: torch.tanh(x * b) + b, ((3500, 5), (5,))),
    "a number for each column of windows": (lambda x, b: (x.unfold(1, 3, 2).exp() + b) * 2, ((2002, 9), (3,))),
}


@pytest.mark.sampled(one_in=7)
@pytest.mark.parametrize("simd", ["auto", "plain"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str, simd: str) -> None:
    function, shapes = GRADIENTS[name]
    torch.manual_seed(0)
    ours = [(torch.randn(s) * 3).requires_grad_() for s in shapes]
    eagers = [x.detach().clone().requires_grad_() for x in ours]
    found = lamina.compile(function, options={"strict": True, "simd": simd})(*ours)
    expected = function(*eagers)
    tangent = torch.randn_like(expected)
    for one, other in zip(
        (found, *torch.autograd.grad(found, ours, tangent)),
        (expected, *torch.autograd.grad(expected, eagers, tangent)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()


def test_a_zero_that_a_gradient_leaves_out_keeps_its_sign() -> None:
    """Eager adds the zeros of one slice's gradient to the other's: a negative zero becomes a positive one."""
    x = torch.randn(3, 64, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        return x[:, ::2] * 2 + x[:, 1::2]

    tangent = torch.full((3, 32), -0.0)
    (found,) = torch.autograd.grad(lamina.compile(f)(x), x, tangent)
    (expected,) = torch.autograd.grad(f(x), x, tangent)
    assert torch.equal(torch.signbit(found), torch.signbit(expected))


def test_a_zero_that_a_picked_element_gets_keeps_its_sign() -> None:
    x = torch.randn(41, 2, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        return x[:, 0] * 2 + x[:, 1]

    tangent = torch.full((41,), -0.0)
    (found,) = torch.autograd.grad(lamina.compile(f, options={"strict": True})(x), x, tangent)
    (expected,) = torch.autograd.grad(f(x), x, tangent)
    assert torch.equal(torch.signbit(found), torch.signbit(expected))


@pytest.mark.parametrize("picked", [lambda x: (x[..., 0], x[..., 1]), lambda x: x.unbind(-1)])
def test_gradients_of_the_elements_of_a_row_are_one_kernel(picked: Any) -> None:
    def backward(x: Tensor, g: Tensor) -> Any:
        x = x.detach().requires_grad_()
        a, b = picked(x)
        return torch.autograd.grad(a.sigmoid() * b.tanh(), x, g)

    gm = make_fx(backward, tracing_mode="fake")(torch.randn(40, 1000, 2), torch.randn(40, 1000))
    plan = make_plan(fuse(lower(gm, "test")), cpu("avx512", 1))
    assert len(plan.steps) == 1


def test_an_axis_of_two_is_not_chosen_for_vectors_before_a_long_one() -> None:
    """Three operands are read along the two channels that become pixels, one and the result along the row."""

    def backward(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return F.pixel_unshuffle(a * b + c * b.sin() + a * c, 2) * x

    images = [torch.randn(2, 4, 96, 96) for _ in range(3)]
    gm = make_fx(backward, tracing_mode="fake")(torch.randn(2, 16, 48, 48), *images)
    plan = make_plan(fuse(lower(gm, "test")), cpu("avx512", 1))
    ((schedule,),) = [k.schedules for k in plan.kernels]
    assert isinstance(schedule, Schedule)
    assert schedule.vector is not None


@pytest.mark.parametrize("shape", [(41, 3), (3, 1), (41, 2), (5, 1, 4)], ids=str)
def test_a_sum_of_negative_zeros_is_a_positive_one(shape: tuple[int, ...]) -> None:
    def f(x: Tensor) -> Tensor:
        return x.sum(-1)

    x = torch.full(shape, -0.0)
    torch.compiler.reset()
    assert torch.equal(torch.signbit(lamina.compile(f)(x)), torch.signbit(f(x)))


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16])
@pytest.mark.parametrize(
    ("a", "b", "dim"), [((4, 3), (4, 3), -1), ((2, 3, 5), (1, 3, 1), 1), ((2, 3, 40), (2, 3, 40), 1)]
)
def test_vector_products(dtype: torch.dtype, a: tuple[int, ...], b: tuple[int, ...], dim: int) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.linalg.cross(x, y, dim=dim) * 2

    x, y = ((torch.randn(s) * 4).to(dtype) for s in (a, b))
    for numerics in ("fast", "eager"):
        torch.compiler.reset()
        found = lamina.compile(f, options={"strict": True, "numerics": numerics})(x, y)
        if numerics == "eager" or not dtype.is_floating_point:
            torch.testing.assert_close(found, f(x, y))
        else:
            assert not judge(found, f(x, y), f(x.double(), y.double()))


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.bfloat16])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_first_of_equals_and_the_first_that_is_no_number(name: str, dtype: torch.dtype) -> None:
    x = torch.randint(-2, 2, (300, 6), generator=torch.Generator().manual_seed(0)).to(dtype)
    if dtype.is_floating_point:
        x[::7, 3] = torch.nan
        x[::14, 1] = torch.nan
        x[1], x[2] = torch.inf, -torch.inf

    def function(x: Tensor) -> Tensor:
        found: Tensor = getattr(torch, name)(x, -1)
        return found

    torch.compiler.reset()
    assert torch.equal(lamina.compile(function, options={"strict": True})(x), function(x))


@pytest.mark.parametrize(("isa", "axes"), [("avx512", 1), ("avx2", 2)])
def test_longer_axes_are_unrolled_for_wide_vectors(isa: str, axes: int) -> None:
    gm = make_fx(lambda x: (x * 0.5).softmax(-1), tracing_mode="fake")(torch.randn(5000, 6))
    plan = make_plan(fuse(lower(gm, "test")), cpu(isa, 1))
    ((nest,),) = [k.nests for k in plan.kernels]
    assert len(nest.axes) == axes


def test_a_row_that_is_a_part_of_a_larger_one_is_unrolled_where_much_is_computed() -> None:
    def cheap(x: Tensor) -> Tensor:
        return torch.cat([x, *(x * 2**k for k in range(10))], -1)

    def costly(x: Tensor) -> Tensor:
        return torch.cat([x, *(f(x * 2**k) for k in range(5) for f in (torch.sin, torch.cos))], -1)

    for function, axes in ((cheap, 2), (costly, 1)):
        gm = make_fx(function, tracing_mode="fake")(torch.randn(5000, 3))
        plan = make_plan(fuse(lower(gm, "test")), cpu("avx512", 1))
        ((nest,),) = [k.nests for k in plan.kernels]
        assert len(nest.axes) == axes


@pytest.mark.parametrize(("numerics", "columns"), [("fast", [125, 5]), ("eager", [5])])
def test_sums_of_a_few_columns_are_made_for_rows_side_by_side(numerics: str, columns: list[int]) -> None:
    gm = make_fx(lambda x, y: ((x * y).exp().sum(0), x + y), tracing_mode="fake")(*torch.randn(2, 35100, 5))
    program = fuse(lower(gm, "test"), numerics).program
    plan = make_plan(fuse(lower(gm, "test"), numerics), cpu("avx512", 1))
    assert len(program.steps) == len(columns)
    assert [int(k.nests[0].axes[-1].extent.const) for k in plan.kernels] == columns


BETWEEN = {
    "between": ((640, 4, 8, 3), (0, 2)),
    "two between": ((96, 3, 7, 2, 5, 2), (0, 2, 4)),
    "a vector": ((640, 4, 16, 3), (0, 2)),
    "long inside": ((64, 3, 4, 5, 64), (0, 2, 4)),
    "few rows": ((8, 4, 200, 3), (0, 2)),
}


@pytest.mark.parametrize(
    ("case", "nests"), [("between", 2), ("two between", 2), ("a vector", 2), ("long inside", 1), ("few rows", 1)]
)
def test_sums_whose_kept_axes_lie_among_others_have_columns_of_all_inside(case: str, nests: int) -> None:
    size, axes = BETWEEN[case]
    gm = make_fx(lambda x, y: ((x * y).exp().sum(axes), x + y), tracing_mode="fake")(*torch.randn(2, *size))
    assert len(fuse(lower(gm, "test"), "fast").program.steps) == nests
    assert len(fuse(lower(gm, "test"), "eager").program.steps) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", BETWEEN)
def test_such_sums_are_as_exact_as_eager(case: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    size, axes = BETWEEN[case]
    x, y = torch.randn(2, *size).to(dtype)
    kept = [n for k, n in enumerate(size) if k not in axes]
    scale = torch.randn(kept).to(dtype)

    def function(x: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        return (x * y).sum(axes) * scale, x.amax(axes), (x.sin() + y).mean(axes), x - y

    torch.compiler.reset()
    found = lamina.compile(function, options={"strict": True})(x, y, scale)
    for one, eager, exact in zip(
        found, function(x, y, scale), function(x.double(), y.double(), scale.double()), strict=True
    ):
        assert not judge(one, eager, exact)


def test_values_that_are_repeated_are_computed_once() -> None:
    """Only stores run along the axis: each is written out."""
    gm = make_fx(lambda x: x.exp().repeat_interleave(3, 1), tracing_mode="fake")(torch.randn(50, 40, 27))
    plan = make_plan(fuse(lower(gm, "test")), cpu("avx512", 1))
    ((nest,),) = [k.nests for k in plan.kernels]
    names = [type(e).__name__ for e in nest.body]
    assert names.count("Compute") == 1
    assert names.count("Store") == 3
    assert len(nest.axes) == 2
