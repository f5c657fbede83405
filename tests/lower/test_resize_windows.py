"""Gradients of resampling on GPUs: each element sums the results around it that it is part of."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lamina.ir.loops import Reduce
from lamina.lower.resize_windows import Window, nearest_window, neighbours_window
from lamina.lower.resizes import Resize

from .harness import check, for_a_gpu, outcome

aten = torch.ops.aten
SHAPES = {1: [2, 3, 11], 2: [2, 3, 10, 11], 3: [1, 2, 4, 5, 6]}
FACTORS = (1.0, 0.45, 1.7, 2.0, 3.0, 7.9)
NEAREST = [f"{'_' if exact else ''}upsample_nearest{exact}{rank}d" for exact in ("", "_exact") for rank in SHAPES]
LINEAR = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def backward(name: str, factor: float, given: bool, *corners: bool) -> tuple[Callable[[Any], Any], list[int]]:
    """The gradient's function and the shape of what it is given; ``given``: the factor is an argument."""
    shape = SHAPES[int(name[-2])]
    size = [int(n * factor) for n in shape[2:]]
    function, scales = getattr(aten, f"{name}_backward"), [factor if given else None] * len(size)
    return lambda g: function(g, size, shape, *corners, *scales), shape[:2] + size


@pytest.mark.sampled(one_in=10)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("name", NEAREST)
def test_nearest(name: str, factor: float, given: bool, dtype: torch.dtype) -> None:
    function, shape = backward(name, factor, given)
    found = outcome(function, [torch.randn(shape).to(dtype)], gpu=True)
    assert not found.complaints
    assert not found.library


@pytest.mark.sampled(one_in=10)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("name", LINEAR)
def test_linear(name: str, factor: float, corners: bool, given: bool, dtype: torch.dtype) -> None:
    function, shape = backward(name, factor, given, corners)
    found = outcome(function, [torch.randn(shape).to(dtype)], gpu=True)
    assert not found.complaints
    assert not found.library


@pytest.mark.parametrize("special", [math.inf, math.nan])
@pytest.mark.parametrize("factor", [0.45, 1.7, 2.0, 3.0])
@pytest.mark.parametrize("name", ["upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_bilinear2d"])
def test_special_gradients_reach_the_elements_that_they_do_in_eager(name: str, factor: float, special: float) -> None:
    """An element with a weight of zero in an infinite gradient is not a number, one without a weight is as it was."""
    corners = (False,) if name == "upsample_bilinear2d" else ()
    function, shape = backward(name, factor, False, *corners)
    gradient = torch.randn(shape)
    gradient[0, 0, 0, 0] = gradient[0, 1, -1, -1] = gradient[1, 2, shape[2] // 2, 1] = gradient[1, 0, -2, -2] = special
    check(function, gradient, gpu=True)


def test_channels_last() -> None:
    function, shape = backward("upsample_bilinear2d", 1.7, False, False)
    check(function, torch.randn(shape).to(memory_format=torch.channels_last), gpu=True)


@pytest.mark.parametrize(("factor", "loops"), [(1.7, False), (7.9, True)])
def test_wide_windows_are_summed_over_by_loops(factor: float, loops: bool) -> None:
    function, shape = backward("upsample_nearest2d", factor, False)
    (nest,) = for_a_gpu(function, [torch.randn(shape)]).steps
    assert any(isinstance(eqn, Reduce) for eqn in nest.body) == loops  # type: ignore[union-attr]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3, 1.0, 1.7, 2.0, 3.0, 4.5])
def test_windows_hold_all_results_of_an_element_and_little_more(scale: float | None, exact: bool) -> None:
    for source in (1, 2, 7, 33, 100):
        result = int(source * (scale or 2.37))
        if not result:
            continue
        resize = Resize(source, result, scale)
        places = resize.nearest(exact)
        window = nearest_window(resize, exact)
        _holds(window, [(place,) for place in places])
        assert window.count <= max(places.count(place) for place in places) + 1
        assert neighbours_window(resize, False, False).count <= 2 * math.ceil(result / source) + 2


def _holds(window: Window, taken: list[tuple[int, ...]]) -> None:
    for at, places in enumerate(taken):
        for i in places:
            assert 0 <= at - (i * window.p + window.r) // window.q < window.count
