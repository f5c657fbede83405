"""Convolutions with few output channels as products of matrices: values, gradients, what is left to the library."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina
from lamina.ir.loops import LibraryCall
from lamina.lower.to_loops import lower
from lamina.testing import judge
from tests.lower.torch_private import traced

aten = torch.ops.aten
LAST = torch.channels_last

CASES = {
    # batch, channels, outputs; size; taps; padding; dilation
    "one output": ((2, 8, 1), (7, 9), (3, 3), (1, 1), (1, 1)),
    "two, of odd sizes": ((1, 4, 2), (5, 6), (3, 2), (0, 1), (1, 1)),
    "dilated": ((3, 5, 3), (8, 8), (2, 3), (2, 0), (2, 1)),
    "wider than the image": ((1, 16, 4), (9, 3), (3, 3), (2, 2), (1, 2)),
    "all of the image": ((2, 6, 1), (4, 4), (4, 4), (0, 0), (1, 1)),
    "beyond the image": ((2, 6, 1), (4, 4), (4, 4), (3, 3), (1, 1)),
    "looped over": ((1, 16, 1), (12, 11), (6, 6), (2, 3), (1, 1)),
    "a row of taps": ((1, 8, 2), (6, 5), (1, 3), (0, 0), (1, 1)),
    "one pixel": ((64, 8, 1), (1, 1), (3, 3), (1, 1), (1, 1)),
    "one tap": ((3, 8, 2), (7, 9), (1, 1), (0, 0), (1, 1)),
    "one tap, of signals": ((3, 8, 1), (19,), (1,), (0,), (2,)),
    "signals": ((3, 8, 2), (17,), (4,), (2,), (3,)),
    "volumes": ((2, 8, 1), (4, 5, 3), (2, 3, 3), (1, 1, 0), (1, 1, 1)),
}


def operands(name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    (batch, channels, outputs), size, taps, pad, dilation = CASES[name]
    g = torch.Generator().manual_seed(0)
    x = torch.randn(batch, channels, *size, generator=g).to(dtype)
    weight = torch.randn(outputs, channels, *taps, generator=g).to(dtype)
    return x, weight, torch.randn(outputs, generator=g).to(dtype), {"padding": pad, "dilation": dilation}


def calls(function: Any, *given: Tensor) -> set[str]:
    program = lower(traced(function, given), "t")
    return {step.op for step in program.steps if isinstance(step, LibraryCall)}


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, settings: dict[str, Any]) -> Tensor:
    function = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[x.dim() - 2]
    return function(x * 1.5, weight, bias, **settings).sigmoid()


def strides(tensor: Tensor) -> list[int]:
    """Those that say something."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1]


@pytest.mark.sampled(one_in=12)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wanted", ["", "x", "w", "xw", "xb", "wb", "xwb"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, wanted: str, dtype: torch.dtype, last: bool) -> None:
    torch.compiler.reset()
    *tensors, settings = operands(name, dtype)
    if last and tensors[0].dim() != 4:
        pytest.skip("channels_last is a layout of images")

    def run(compiled: bool, kin: torch.dtype) -> list[Tensor]:
        given = [t.to(kin).clone().requires_grad_(letter in wanted) for t, letter in zip(tensors, "xwb", strict=True)]
        x, weight, bias = given
        x = x.to(memory_format=LAST) if last else x
        function = lamina.compile(convolved, options={"strict": True}) if compiled else convolved
        out = function(x, weight, bias if len(wanted) != 1 else None, settings)
        leaves = [t for t in given if t.requires_grad]
        return [out, *(torch.autograd.grad(out, leaves, torch.ones_like(out).cumsum(-1)) if leaves else ())]

    for mine, eager, exact in zip(run(True, dtype), run(False, dtype), run(False, torch.float64), strict=True):
        assert strides(mine) == strides(eager)
        assert judge(mine, eager, exact) == ""


@pytest.mark.parametrize("last", [False, True])
def test_no_convolution_of_the_library_is_called(last: bool) -> None:
    x, weight, bias, _ = operands("one output", torch.float32)
    x = x.to(memory_format=LAST) if last else x
    gradient = torch.randn(2, 1, 7, 9)
    settings = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert calls(lambda x, w, b: aten.convolution(x, w, b, *settings), x, weight, bias) == {"aten.bmm.default"}
    backward = lambda g, x, w: aten.convolution_backward(g, x, w, None, *settings, [True, True, False])[:2]  # noqa: E731
    assert not calls(backward, gradient, x, weight)


@pytest.mark.parametrize(
    ("size", "weight", "settings"),
    [
        ((2, 8, 6, 6), (5, 8, 3, 3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)),  # more outputs
        ((2, 2, 6, 6), (1, 2, 3, 3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)),  # few inputs
        ((2, 8, 6, 6), (3, 8, 1, 1), ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)),  # a product already
        ((2, 8, 6, 6), (1, 8, 1, 1), ([1, 1], [1, 0], [1, 1], False, [0, 0], 1)),  # one tap beyond the image
        ((1, 8, 60, 60), (1, 8, 1, 1), ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)),  # at the speed of memory
        ((2, 8, 6, 6), (1, 8, 3, 3), ([2, 1], [1, 1], [1, 1], False, [0, 0], 1)),  # most planes are not wanted
        ((2, 4, 6, 6), (4, 8, 3, 3), ([1, 1], [1, 1], [1, 1], True, [0, 0], 1)),  # transposed
        ((2, 8, 6, 6), (2, 4, 3, 3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 2)),  # groups
        ((2, 4, 9, 9), (4, 4, 5, 5), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)),  # 100 planes of 4 channels
    ],
)
def test_what_is_left_to_the_library(size: Any, weight: Any, settings: Any) -> None:
    x, w = torch.randn(size), torch.randn(weight)
    assert "aten.convolution.default" in calls(lambda x, w: aten.convolution(x, w, None, *settings), x, w)


@pytest.mark.parametrize("what", ["half precision", "gaps between pixels"])
def test_images_that_are_left_to_the_library(what: str) -> None:
    x, weight, _, _ = operands("one output", torch.float16 if what == "half precision" else torch.float32)
    if what == "gaps between pixels":
        x = torch.randn(2, 8, 7, 18)[..., ::2]
    settings = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert "aten.convolution.default" in calls(lambda x, w: aten.convolution(x, w, None, *settings), x, weight)


@pytest.mark.parametrize("grad", [False, True])
def test_sizes_that_vary_get_no_guard(grad: bool) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(lambda x, w: F.conv2d(x, w).relu(), dynamic=True, options={"strict": True})
    for outputs, size in ((2, 9), (4, 8), (7, 12), (3, 7)):
        x = torch.randn(11, 8, size, size + 1).to(memory_format=LAST).requires_grad_(grad)
        weight = torch.randn(outputs, 8, 3, 3)
        found, wanted = compiled(x, weight), F.conv2d(x, weight).relu()
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        if grad:
            (mine,), (eager,) = (torch.autograd.grad(out.sum(), (x,)) for out in (found, wanted))
            torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)
    assert len([stage for stage in compiled.record.stages if stage.name == "capture"]) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_tap_is_a_nest(dtype: torch.dtype) -> None:
    x, weight, bias, _ = operands("one tap", dtype)
    settings = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert not calls(lambda x, w, b: aten.convolution(x, w, b, *settings), x, weight, bias)
    gradient = torch.randn(3, 2, 7, 9).to(dtype)
    backward = lambda g, x, w: aten.convolution_backward(g, x, w, None, *settings, [True, True, False])[:2]  # noqa: E731
    assert not calls(backward, gradient, x, weight)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("name", ["beyond the image", "one output", "one tap", "all of the image"])
def test_what_is_no_finite_number_stays_where_it_is(name: str, place: int) -> None:
    torch.compiler.reset()
    x, weight, bias, settings = operands(name, torch.float32)
    gradient = torch.randn_like(convolved(x, weight, bias, settings))
    given = [x, weight, gradient]
    given[place].view(-1)[0] = float("inf")

    def run(function: Any) -> list[Tensor]:
        a, w = x.clone().requires_grad_(), weight.clone().requires_grad_()
        out = function(a, w)
        return [out, *torch.autograd.grad(out, [a, w], gradient)]

    def function(a: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(a, w, **settings)

    for mine, eager in zip(run(lamina.compile(function)), run(function), strict=True):
        assert mine.isfinite().equal(eager.isfinite())


def test_numerics_of_eager_are_the_librarys() -> None:
    x, weight, _, settings = operands("one output", torch.float32)
    compiled = lamina.compile(lambda x, w: F.conv2d(x, w, **settings), options={"numerics": "eager"})
    assert compiled(x, weight).equal(F.conv2d(x, weight, **settings))
