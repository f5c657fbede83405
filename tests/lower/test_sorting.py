"""Sorting along short dimensions: values bit for bit, and places, as a stable sort has them."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

import lamina
from lamina.ir.loops import LibraryCall, LoopProgram
from lamina.ir.loops_interp import run_program
from lamina.lower.sorted_rows import LONGEST
from lamina.lower.sorting_network import comparators
from lamina.lower.to_loops import lower

from .harness import check, for_a_gpu, outcome
from .samples import DTYPES, check_samples, samples
from .torch_private import traced

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]


def rows(dtype: torch.dtype, length: int, count: int = 40) -> Tensor:
    """Rows in which many elements are equal, with the least and greatest of the type, zeros of both signs and NaN."""
    g = torch.Generator().manual_seed(length)
    if dtype is torch.bool:
        return torch.rand(count, length, generator=g) < 0.5
    if dtype.is_floating_point:
        far = torch.finfo(dtype)
        rare = [float("nan"), -0.0, 0.0, float("inf"), float("-inf"), far.tiny, far.max, far.min]
        special = torch.tensor(rare, dtype=dtype)
        plain = torch.randint(-4, 5, (count, length), generator=g).to(dtype)
        drawn = special[torch.randint(len(special), (count, length), generator=g)]
        return torch.where(torch.rand(count, length, generator=g) < 0.5, plain, drawn)
    size = dtype.itemsize
    wide = torch.tensor([0, 1, 2, -1, -2, 2 ** (8 * size - 1) - 1, -(2 ** (8 * size - 1)), 5])
    bits = wide.to({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    return bits[torch.randint(len(bits), (count, length), generator=g)].view(dtype)


def assert_same(mine: Tensor, theirs: Tensor) -> None:
    """Bit for bit, but for those of NaN."""
    assert mine.dtype == theirs.dtype
    assert mine.shape == theirs.shape
    assert mine.stride() == theirs.stride()
    if mine.dtype.is_floating_point:
        assert torch.equal(mine.isnan(), theirs.isnan())
        mine, theirs = (torch.where(v.isnan(), 1, v) for v in (mine, theirs))
        assert torch.equal(mine.signbit(), theirs.signbit())
    assert torch.equal(mine, theirs)


def program(fn: object, *args: Tensor, numerics: str = "fast", symbolic: bool = False) -> LoopProgram:
    return lower(traced(fn, args, symbolic), "test", numerics)


def calls(fn: object, *args: Tensor, numerics: str = "fast", symbolic: bool = False) -> int:
    return sum(isinstance(s, LibraryCall) for s in program(fn, *args, numerics=numerics, symbolic=symbolic).steps)


@pytest.mark.parametrize("count", range(LONGEST + 1))
def test_the_networks_sort(count: int) -> None:
    """A network that sorts all rows of zeros and ones sorts everything; of long ones some are tried."""
    g = torch.Generator().manual_seed(count)
    drawn = torch.randint(0, 2, (2000, count), generator=g)
    every = torch.tensor(list(product((0, 1), repeat=count))) if 0 < count <= 10 else drawn
    lanes = list(every.unbind(1))
    for i, j in comparators(count):
        assert 0 <= i < j < count
        lanes[i], lanes[j] = torch.minimum(lanes[i], lanes[j]), torch.maximum(lanes[i], lanes[j])
    assert not count or torch.equal(torch.stack(lanes, 1), every.sort(1).values)


KERNELS = [*((d, 5) for d in (*FLOATS, *INTEGERS, torch.bool)), (torch.float32, 18)]


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize(("dtype", "length"), KERNELS, ids=str)
def test_types_in_kernels(dtype: torch.dtype, length: int) -> None:
    """Whole vectors of rows and less; both orders, rows and columns, and places alone."""
    x = rows(dtype, length)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        down = torch.sort(x.t(), dim=0, descending=True, stable=True)
        return *torch.sort(x, dim=1, stable=True), *down, torch.argsort(x, dim=1, stable=True)

    assert calls(function, x) == 0
    torch.compiler.reset()
    compiled = lamina.compile(function, options={"strict": True})
    for mine, theirs in zip(compiled(x), function(x), strict=True):
        assert_same(mine, theirs)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_types_and_lengths_in_the_interpreter(dtype: torch.dtype) -> None:
    for length, descending in product((1, 2, 3, 8, 13, 16, 17, 31, LONGEST), (False, True)):
        x = rows(dtype, length)
        made = program(lambda x, d=descending: torch.sort(x, dim=1, descending=d, stable=True), x)
        assert not any(isinstance(s, LibraryCall) for s in made.steps)
        for mine, theirs in zip(run_program(made, [x]), x.sort(dim=1, descending=descending, stable=True), strict=True):
            assert_same(mine, theirs)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_dimensions_and_strides(dim: int) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        views = (x[..., :9], x[:, ::2, ::2], x.permute(2, 0, 1)[:16], x[:, :1, :5])
        return tuple(found for view in views for found in torch.sort(view, dim))

    whole = rows(torch.float32, 9, 7 * 10 * 2).reshape(7, 10, 18)
    assert calls(function, whole) == 0
    for mine, theirs in zip(lamina.compile(function, options={"strict": True})(whole), function(whole), strict=True):
        assert_same(mine, theirs)


def test_scalars_and_tensors_without_elements() -> None:
    check(lambda x: torch.sort(x), torch.tensor(3.0))
    for shape, dim in (((0, 4), 1), ((4, 0), 1), ((4, 0), 0)):
        found = outcome(lambda x, dim=dim: torch.sort(x, dim), [torch.empty(shape)])
        assert not found.complaints


@pytest.mark.parametrize("length", [2, 16])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.uint8], ids=str)
def test_eagers_sort_of_short_rows_is_stable_though_nobody_asks(dtype: torch.dtype, length: int) -> None:
    x = rows(dtype, length, 400)
    for dim, descending in product((0, 1), (False, True)):
        given = x if dim else x.t().contiguous()
        for mine, theirs in zip(
            torch.sort(given, dim, descending),
            torch.sort(given, dim=dim, descending=descending, stable=True),
            strict=True,
        ):
            assert_same(mine, theirs)


def test_what_is_left_to_the_library() -> None:
    """Long rows, lengths of run time, and equal elements whose order is the library's own."""
    x = torch.randn(50, 20)
    assert calls(lambda x: torch.sort(x), torch.randn(4, LONGEST)) == 0
    assert calls(lambda x: torch.sort(x), torch.randn(4, LONGEST + 1)) == 1
    assert calls(lambda x: torch.sort(x), torch.randn(4, 6), symbolic=True) == 1
    assert calls(lambda x: torch.sort(x), x, numerics="eager") == 1
    assert calls(lambda x: torch.sort(x)[0], x, numerics="eager") == 1
    assert calls(lambda x: torch.sort(x)[0], x.int(), numerics="eager") == 0
    assert calls(lambda x: torch.sort(x[:, :16]), x, numerics="eager") == 0
    assert calls(lambda x: torch.sort(x, stable=True), x, numerics="eager") == 0
    for dtype in (torch.bfloat16, torch.int32):
        assert calls(lambda x: torch.sort(x), x.to(dtype)) == 1
        assert calls(lambda x: torch.sort(x)[0], x.to(dtype)) == 0
        assert calls(lambda x: torch.sort(x, stable=True), x.to(dtype)) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int16, torch.int32])
@pytest.mark.parametrize(("length", "library"), [(9, 1), (32, 1), (33, 0), (200, 0), (1024, 0)])
def test_a_gpus_library_leaves_equal_elements_of_longer_rows_in_order(
    dtype: torch.dtype, length: int, library: int
) -> None:
    for descending in (False, True):
        x = torch.randint(0, 5, (3, length)).to(dtype)
        program = for_a_gpu(lambda x: torch.sort(x, descending=descending), [x])  # noqa: B023
        assert sum(isinstance(s, LibraryCall) for s in program.steps) == library
        if not library:
            for mine, theirs in zip(
                run_program(program, [x]), torch.sort(x, descending=descending, stable=True), strict=True
            ):
                assert_same(mine, theirs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["sort", "argsort", "msort"])
def test_samples(name: str, dtype: torch.dtype) -> None:
    check_samples(name, dtype)


def test_a_half_type_is_sorted_as_it_would_be_stored() -> None:
    """Numbers that are equal after rounding stay in order, and values are those of eager."""
    x = torch.randn(500, 16, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sort(x * 0.9, dim=1, stable=True)

    for mine, theirs in zip(lamina.compile(function, dynamic=False)(x), function(x), strict=True):
        assert_same(mine, theirs)


def test_gradients() -> None:
    x = torch.randn(40, 8, requires_grad=True)
    check(lambda x: torch.sort(x, 1)[0] * torch.arange(8), x)
    compiled = lamina.compile(lambda x: torch.sort(x.sin(), 0, descending=True)[0].cumsum(0), options={"strict": True})
    x = torch.randn(12, 50, requires_grad=True)
    mine, theirs = (
        torch.autograd.grad(f(x).square().sum(), x)[0] for f in (compiled, lambda x: x.sin().sort(0, True)[0].cumsum(0))
    )
    torch.testing.assert_close(mine, theirs)


SELECTIONS = {
    "topk": lambda x: torch.topk(x, 5, 1),
    "topk of all, least first": lambda x: torch.topk(x, x.shape[1], 1, largest=False),
    "kthvalue": lambda x: (torch.kthvalue(x, 4, 1)[0],),
    "median": lambda x: torch.median(x, 1, keepdim=True),
    "nanmedian": lambda x: torch.nanmedian(x, 1),
    "median of columns": lambda x: torch.median(x.t(), 0),
}


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_selections(name: str, dtype: torch.dtype) -> None:
    """Values and places of elements none of which are equal, but infinities of one row: NaN at most once."""
    g = torch.Generator().manual_seed(0)
    x = torch.stack([torch.randperm(9, generator=g) for _ in range(60)]).to(dtype)
    x[10:30][x[10:30] == 3] = float("nan")
    x[20:40][x[20:40] == 8] = float("inf")
    found = outcome(SELECTIONS[name], [x])
    assert not found.complaints
    assert not found.library
    compiled = lamina.compile(SELECTIONS[name], options={"strict": True}, dynamic=False)
    for mine, theirs in zip(compiled(x), SELECTIONS[name](x), strict=True):
        assert_same(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("name", SELECTIONS)
def test_values_of_selections(name: str, dtype: torch.dtype) -> None:
    """However many elements are equal, values are eager's but for the signs of zeros."""
    x = rows(dtype, 8)
    function = lambda x: SELECTIONS[name](x)[0]  # noqa: E731
    assert calls(function, x) == 0
    assert calls(function, x, numerics="eager") == int(dtype.is_floating_point)
    for given in (x, x[:, :1], x[:, :5])[: 3 if "5" in name or "median" in name else 1]:
        (mine,) = run_program(program(function, given), [given])
        theirs = function(given)
        if dtype.is_floating_point:
            assert torch.equal(mine.isnan(), theirs.isnan())
            mine, theirs = mine.nan_to_num(7), theirs.nan_to_num(7)
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize("name", ["topk", "kthvalue", "median", "nanmedian"])
def test_samples_of_selections(name: str, dtype: torch.dtype) -> None:
    for fn, given in samples(name, dtype, 4):
        found = outcome(fn, given)
        assert not found.complaints, ([tuple(t.shape) for t in given], found.complaints)


def test_selections_left_to_the_library() -> None:
    """Elements in no order, and where they were if many are equal; errors are eager's."""
    x = torch.randn(6, 9)
    assert calls(lambda x: torch.topk(x, 3, sorted=False), x) == 1
    for name, function in SELECTIONS.items():
        assert calls(function, x, numerics="eager") == 1, name
        assert calls(function, x.bfloat16()) == (name != "kthvalue"), name
        assert calls(function, torch.randn(4, LONGEST + 1)) == 1, name


@pytest.mark.parametrize("row", [[0.0] * 5, [0.0, 2.0, 3.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0, 0.0]], ids=str)
def test_the_gradient_of_kthvalue_goes_to_the_equal_element_that_eager_takes(row: list[float]) -> None:
    found = []
    for way in (lambda fn: fn, lamina.compile):
        x = torch.tensor(row, requires_grad=True)
        way(lambda x: torch.kthvalue(x, 2)[0])(x).backward()
        found.append(x.grad)
    assert torch.equal(*found)
