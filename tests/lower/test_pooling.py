"""Pooling with all window parameters, forward and backward, against eager."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan, prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import lamina
from lamina.ir.loops import Load, Nest
from lamina.ir.loops_interp import run_program
from lamina.lower.to_loops import lower
from lamina.rewrite.pool_places import max_pool2d_offsets_backward, max_pool2d_with_offsets

from .harness import check, outcome
from .samples import check_samples
from .torch_private import traced

aten = torch.ops.aten
POOLS = [f"nn.functional.{kind}_pool{rank}d" for kind in ("avg", "adaptive_avg", "max") for rank in (1, 2, 3)]


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("name", POOLS)
def test_samples(name: str, dtype: torch.dtype) -> None:
    check_samples(name, dtype)


X = torch.randn(2, 3, 10, 11)
MAX: list[tuple[Any, ...]] = [
    ((3, 3), (2, 2), (1, 1), (1, 1), False),
    ((2, 2), (2, 2), (0, 0), (1, 1), False),
    ((3, 2), (1, 2), (1, 0), (2, 1), False),
    ((3, 3), (2, 2), (1, 1), (1, 1), True),
    ((7, 7), (1, 1), (3, 3), (1, 1), False),
    ((2, 2), (3, 3), (0, 0), (1, 1), False),
]


@pytest.mark.parametrize("window", MAX)
def test_max_pooling(window: tuple[Any, ...]) -> None:
    for x in (X, X[0], X.to(memory_format=torch.channels_last), X.double()):
        check(lambda x: aten.max_pool2d_with_indices(x, *window), x)
    out, places = aten.max_pool2d_with_indices(X, *window)
    check(lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, *window, i), torch.randn_like(out), X, places)


@pytest.mark.parametrize("window", MAX)
def test_distances_from_the_corners_of_windows(window: tuple[Any, ...]) -> None:
    holes = torch.where(torch.rand(X.shape) > 0.9, nan, X)
    holes[0, 0] = -inf
    for x in (X, holes, X.to(memory_format=torch.channels_last)) if window[0] != (7, 7) else (X,):
        out, offsets = max_pool2d_with_offsets(x, *window, torch.uint8)
        assert offsets.dtype == torch.uint8
        assert torch.equal(out.nan_to_num(9), aten.max_pool2d_with_indices(x, *window)[0].nan_to_num(9))
        check(lambda x: max_pool2d_with_offsets(x, *window, torch.uint8), x)
        check(lambda g, x, o: max_pool2d_offsets_backward(g, x, *window, o), torch.randn_like(out), x, offsets)


@pytest.mark.parametrize("size", [3, 7])
def test_windows_of_infinities_and_nan(size: int) -> None:
    window = ([size, size], [2, 2], [size // 2, size // 2])
    check(lambda x: aten.max_pool2d_with_indices(x, *window), torch.full((1, 1, 9, 9), -inf))
    torch.manual_seed(0)
    holes = torch.where(torch.rand(1, 1, 9, 9) > 0.8, nan, torch.randn(1, 1, 9, 9))
    check(lambda x: aten.max_pool2d_with_indices(x, *window)[0], holes)


def test_an_unread_result_is_not_made() -> None:
    found = outcome(lambda x: aten.max_pool2d_with_indices(x, [3, 3], [2, 2])[0], [X])
    assert not found.complaints
    assert found.nests == 1


AVG: list[tuple[Any, ...]] = [
    ([3, 3], [2, 2], [1, 1], False, True, None),
    ([2, 2], [2, 2], [0, 0], False, True, None),
    ([3, 2], [1, 2], [1, 0], False, False, None),
    ([3, 3], [2, 2], [1, 1], True, True, None),
    ([3, 3], [2, 2], [1, 1], True, False, None),
    ([3, 3], [2, 2], [1, 1], False, True, 5),
    ([7, 7], [1, 1], [3, 3], False, True, None),
]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("window", AVG)
def test_average_pooling(window: tuple[Any, ...], symbolic: bool) -> None:
    check(lambda x: aten.avg_pool2d(x, *window), X, symbolic=symbolic)
    gradient = torch.randn_like(aten.avg_pool2d(X, *window))
    check(lambda g, x: aten.avg_pool2d_backward(g, x, *window), gradient, X, symbolic=symbolic)


@pytest.mark.parametrize("size", [(1, 1), (5, 11), (2, 1), (3, 4), (7, 20)])
def test_adaptive_average_pooling(size: tuple[int, int]) -> None:
    check(lambda x: aten._adaptive_avg_pool2d(x, list(size)), X)
    check(lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), torch.randn(2, 3, *size), X)


def test_three_dimensions() -> None:
    check(lambda x: aten.max_pool3d_with_indices(x, [3, 3, 3], [2, 2, 2], [1, 1, 1]), X)
    check(lambda x: aten.avg_pool3d(x, [2, 2, 2], [1, 2, 2], [1, 1, 1]), X)
    check(lambda x: aten._adaptive_avg_pool3d(x, [2, 3, 4]), X)


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("window", MAX)
def test_on_a_gpu_elements_look_for_the_windows_that_chose_them(window: tuple[Any, ...], short: bool) -> None:
    """No zeros written first and nothing added in memory; values to the last digit but for the order of additions."""
    function = max_pool2d_offsets_backward if short else aten.max_pool2d_with_indices_backward.default
    pool = max_pool2d_with_offsets(X, *window, torch.uint8) if short else aten.max_pool2d_with_indices(X, *window)
    given = torch.randn_like(pool[0]), X, pool[1]

    def backward(g: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return function(g, x, *window, i)

    with FakeTensorMode():
        graph = traced(backward, [torch.empty(t.shape, dtype=t.dtype, device="cuda") for t in given])
    program = lower(graph, "t")
    assert len(program.steps) == (2 if window[0] == (7, 7) else 1)  # an element in 49 windows has its gradient added
    here = replace(program, buffers=tuple(replace(b, device="cpu") for b in program.buffers))
    torch.testing.assert_close(run_program(here, given)[0], backward(*given))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("size", [(3, 4), (2, 5)])
def test_means_of_large_windows_are_sums_of_sums_of_rows(size: tuple[int, int], dtype: torch.dtype) -> None:
    """Where neighbours in a row are neighbours in memory; channels that are innermost are whole vectors already."""
    for pool in (
        lambda x: aten._adaptive_avg_pool2d(x, list(size)),
        lambda x: aten.avg_pool2d(x, [5, size[1]], [2, 3], [2, 1], True, False),
        lambda x: aten.avg_pool2d(x, [5, size[1]], [2, 3], [2, 1], True, True),
    ):
        for x, nests in ((X, 2), (X.to(memory_format=torch.channels_last), 1)):
            found = outcome(pool, [x.to(dtype)])
            assert not found.complaints
            assert not found.library
            assert found.nests == nests


@pytest.mark.parametrize("size", [(3, 4), (7, 5), (4, 20)])
def test_gradients_of_uneven_means_go_to_columns_and_then_to_rows(size: tuple[int, int]) -> None:
    for form, nests in ((torch.contiguous_format, 2), (torch.channels_last, 1)):
        given = [torch.randn(2, 3, *size).contiguous(memory_format=form), X.contiguous(memory_format=form)]
        found = outcome(lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), given)
        assert not found.complaints
        assert not found.library
        assert found.nests == nests


@pytest.mark.parametrize("size", [(2, 3), (10, 11)])
def test_the_mean_of_a_window_that_is_everything_is_one_sum(size: tuple[int, int]) -> None:
    """Not a written-out one for each row and another over rows: compilers took minutes for windows of 14 by 14."""
    x = X[..., : size[0], : size[1]]
    for program in (
        lambda x: aten.avg_pool2d(x, list(size)),
        lambda x: aten.avg_pool2d(x, list(size), [], [0, 0], False, True, 7),
        lambda x: aten._adaptive_avg_pool2d(x, [1, 1]),
    ):
        for given in (x.contiguous(), x.contiguous(memory_format=torch.channels_last), x.contiguous().bfloat16()):
            check(program, given)
        (nest,) = lower(traced(program, [x.contiguous()]), "t").steps
        assert isinstance(nest, Nest)
        assert sum(isinstance(e, Load) for e in nest.body) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 9, 17), (2, 3, 2, 4, 5)])
def test_unpooling_puts_elements_at_their_places(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    rank = 3 if len(shape) == 5 else 2
    count, sizes = prod(shape[-rank:]), [2 * n for n in shape[-rank:]]
    planes = [torch.randperm(prod(sizes))[:count] for _ in range(prod(shape[:-rank]))]
    places, x = torch.stack(planes).reshape(shape), torch.randn(shape).to(dtype)
    if rank == 2:
        found = outcome(lambda x, i: aten.max_unpool2d(x, i, sizes), [x, places])
    else:
        found = outcome(lambda x, i: aten.max_unpool3d(x, i, sizes, [2, 2, 2], [0, 0, 0]), [x, places])
    assert not found.complaints
    assert not found.library
    assert found.nests == 2


def test_of_elements_with_one_place_the_last_stays() -> None:
    """As in eager on one thread; several threads of eager's share a plane and race."""
    x, places = torch.randn(1, 2, 64, 128), torch.randint(0, 1000, (1, 2, 64, 128))
    expected = torch.zeros(1, 2, 128 * 256)
    for plane in range(2):
        for place, value in zip(places[0, plane].flatten().tolist(), x[0, plane].flatten().tolist(), strict=True):
            expected[0, plane, place] = value
    compiled = lamina.compile(lambda x, i: F.max_unpool2d(x, i, 2), options={"strict": True})
    assert torch.equal(compiled(x, places).flatten(2), expected)


@pytest.mark.parametrize("place", [-1, 80, 1 << 40])
def test_places_outside_of_what_is_unpooled_are_errors(place: int) -> None:
    places = torch.zeros(1, 1, 4, 5, dtype=torch.int64)
    places[..., -1] = place
    compiled = lamina.compile(lambda x, i: F.max_unpool2d(x, i, 2), options={"strict": True})
    for program in (lambda x, i: F.max_unpool2d(x, i, 2), compiled):
        with pytest.raises(RuntimeError, match="Found an invalid max index"):
            program(torch.ones(1, 1, 4, 5), places)
