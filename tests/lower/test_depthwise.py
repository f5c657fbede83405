"""Convolutions of each channel with a filter of its own as nests: values, gradients, what is left to the library."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import lamina
from lamina.ir.loops import LibraryCall, Load, LoopProgram, Nest, Reduce
from lamina.ir.loops_interp import run_program
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import Fused, fuse
from lamina.testing import judge
from tests.lower.torch_private import traced
from tests.schedule.test_window_coarsening import coarsened

aten = torch.ops.aten
LAST = torch.channels_last


def fused_on_a_gpu(function: Any, *given: Tensor, numerics: str = "fast") -> Fused:
    """The fused program as it is for a GPU, where cuDNN keeps images channels-last."""
    with FakeTensorMode():
        fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda") for t in given]
        gm = traced(function, fakes)
        for node in gm.graph.nodes:
            if "convolution" in str(node.target):
                node.meta["val"] = _last(node.meta["val"])
        return fuse(lower(gm, "t", numerics), numerics)


def on_a_gpu(function: Any, *given: Tensor) -> LoopProgram:
    """That program with buffers that the interpreter can make here."""
    program = fused_on_a_gpu(function, *given).program
    return replace(program, buffers=tuple(replace(b, device="cpu") for b in program.buffers))


def _last(value: Any) -> Any:
    """Images with the channels innermost; anything else as it is."""
    if isinstance(value, tuple | list):
        return tuple(map(_last, value))
    if value is None or value.dim() != 4 or value.shape[1] == 1:
        return value
    n, c, h, w = value.shape
    return torch.empty_strided((n, c, h, w), (c * h * w, 1, c * w, c), dtype=value.dtype, device=value.device)


def operands(kernel: tuple[int, int], width: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(16, 8, 9, width).bfloat16().contiguous(memory_format=LAST)
    return x, torch.randn(8, 1, *kernel).bfloat16(), torch.randn(8).bfloat16()


def settings(step: int, pad: int, dilation: int, groups: int = 8) -> tuple[Any, ...]:
    return ([step] * 2, [pad] * 2, [dilation] * 2, False, [0, 0], groups)


def reads(program: LoopProgram, name: str) -> int:
    """Places of an operand that a point of the convolution reads."""
    nest = max((s for s in program.steps if isinstance(s, Nest)), key=lambda s: len(s.body))
    return sum(isinstance(e, Load) and e.buffer == name for e in nest.body)


CASES = [
    # filter, width of the image, step, padding, dilation, places of the image that a point reads
    ((7, 7), 8, 1, 3, 1, 10),  # for each row of the window
    ((7, 7), 7, 1, 3, 1, 7),  # and of the image
    ((5, 5), 8, 1, 2, 1, 40),
    ((3, 3), 8, 1, 1, 1, 18),
    ((3, 3), 8, 1, 0, 1, 15),
    ((3, 3), 11, 1, 1, 1, 15),  # three rows
    ((5, 5), 8, 1, 4, 2, 60),
    ((3, 3), 8, 2, 1, 1, 9),
    ((1, 3), 10, 1, 1, 1, 7),
]


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize(("kernel", "width", "step", "pad", "dilation", "read"), CASES)
def test_values(kernel: tuple[int, int], width: int, step: int, pad: int, dilation: int, read: int) -> None:
    rest = settings(step, pad, dilation)
    x, w, b = operands(kernel, width)
    before = on_a_gpu(lambda x, w, b: aten.convolution(x, w, b, *rest), x, w, b)
    assert all(isinstance(s, Nest) for s in before.steps)
    after = coarsened(before)
    assert reads(after, "arg0_1") == read
    want = aten.convolution(x.double(), w.double(), b.double(), *rest)
    (found,) = run_program(after, [x, w, b])
    assert found.stride() == x.new_empty(found.shape).contiguous(memory_format=LAST).stride()
    torch.testing.assert_close(found.double(), want, rtol=4e-3, atol=4e-3 * float(want.abs().max()))
    torch.testing.assert_close([found], run_program(before, [x, w, b]), rtol=0, atol=0)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("step", [1, 2])
def test_float32_in_both_orders_of_memory(last: bool, step: int) -> None:
    rest = settings(step, 1, 1)
    x, w, b = (t.float() for t in operands((3, 3)))
    x = x.contiguous(memory_format=LAST if last else torch.contiguous_format)
    y = aten.convolution(x, w, None, *rest)
    g = torch.randn(y.shape).contiguous(memory_format=LAST if last else torch.contiguous_format)

    def both(g: Tensor, x: Tensor, w: Tensor, b: Tensor) -> Any:
        grads = aten.convolution_backward(g, x, w, None, *rest, (True, False, False))
        return aten.convolution(x, w, b, *rest), grads[0]

    after = coarsened(on_a_gpu(both, g, x, w, b))
    assert all(isinstance(s, Nest) for s in after.steps)
    a = x.double().requires_grad_()
    want = aten.convolution(a, w.double(), b.double(), *rest)
    (slope,) = torch.autograd.grad(want, a, g.double())
    for found, true in zip(run_program(after, [g, x, w, b]), (want.detach(), slope), strict=True):
        torch.testing.assert_close(found.double(), true, rtol=1e-5, atol=1e-5)


GRADIENTS = [
    # filter, width, step, padding, places of the gradient that a point reads
    ((7, 7), 8, 1, 3, 10),
    ((3, 3), 8, 1, 1, 18),
    ((3, 3), 8, 1, 0, 18),
    ((3, 3), 8, 2, 1, 4),
    ((5, 3), 8, 2, 2, 6),
]


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize(("kernel", "width", "step", "pad", "read"), GRADIENTS)
@pytest.mark.parametrize("bias", [False, True])
def test_gradients(kernel: tuple[int, int], width: int, step: int, pad: int, read: int, bias: bool) -> None:
    """The image's gradient is a nest, the filter's a library call, the bias's a sum that joins neither."""
    rest = settings(step, pad, 1)
    x, w, _ = operands(kernel, width)
    y = aten.convolution(x, w, None, *rest)
    g = torch.randn(y.shape).bfloat16().contiguous(memory_format=LAST)

    def backward(g: Tensor, x: Tensor, w: Tensor) -> Any:
        found = aten.convolution_backward(g, x, w, [8] if bias else None, *rest, (True, True, bias))
        return found if bias else found[:2]

    after = coarsened(on_a_gpu(backward, g, x, w))
    calls = [s for s in after.steps if isinstance(s, LibraryCall)]
    assert [c.args[-1] for c in calls] == [(False, True, False)]
    windows = [s for s in after.steps if isinstance(s, Nest) and len(s.body) > 20]
    assert len(windows) == 1
    assert reads(after, "arg0_1") == read
    rows = {e.axes for e in windows[0].body if isinstance(e, Reduce)}
    assert read < 9 or rows == ({("i4",)} if kernel == (7, 7) else set())
    a, v, c = (t.double().requires_grad_() for t in (x, w, torch.zeros(8)))
    wanted = torch.autograd.grad(aten.convolution(a, v, c, *rest), (a, v, c), g.double())
    for found, want in zip(run_program(after, [g, x, w]), wanted, strict=False):
        torch.testing.assert_close(found.double(), want, rtol=1e-2, atol=1e-2 * float(want.abs().max()))


def test_what_the_library_keeps() -> None:
    x, w, b = operands((3, 3))
    rest = settings(1, 1, 1)
    wide = torch.randn(8, 1, 9, 9).bfloat16()
    pairs = torch.randn(16, 1, 3, 3).bfloat16()
    turned = ([1, 1], [1, 1], [1, 1], True, [0, 0], 8)
    cases: list[tuple[tuple[Tensor, ...], tuple[Any, ...]]] = [
        ((x.double(), w.double(), b.double()), rest),
        ((x.contiguous(), w, b), rest),
        ((x, wide, b), settings(1, 4, 1)),
        ((x, pairs, torch.randn(16).bfloat16()), rest),
        ((x, w, b), turned),
        ((x, torch.randn(8, 2, 3, 3).bfloat16(), b), settings(1, 1, 1, 4)),
    ]
    for given, how in cases:
        program = on_a_gpu(lambda x, w, b, how=how: aten.convolution(x, w, b, *how), *given)
        assert any(isinstance(s, LibraryCall) for s in program.steps)


def test_results_that_are_rounded_as_eagers_are_the_librarys() -> None:
    """ATen rounds the library's result before it adds the bias."""
    given, rest = operands((3, 3)), settings(1, 1, 1)

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return aten.convolution(x, w, b, *rest)

    for numerics in ("fast", "eager"):
        steps = fused_on_a_gpu(function, *given, numerics=numerics).program.steps
        assert any(isinstance(s, LibraryCall) for s in steps) == (numerics == "eager")


def test_neighbours_of_windows_with_gaps_keep_the_librarys_gradient() -> None:
    x, w, _ = operands((3, 3))
    rest = settings(1, 2, 2)
    g = torch.randn(aten.convolution(x, w, None, *rest).shape).bfloat16().contiguous(memory_format=LAST)

    def backward(g: Tensor, x: Tensor, w: Tensor) -> Any:
        return aten.convolution_backward(g, x, w, None, *rest, (True, True, False))[:2]

    (call,) = (s for s in on_a_gpu(backward, g, x, w).steps if isinstance(s, LibraryCall))
    assert call.args[-1] == (True, True, False)


def test_what_comes_before_and_after() -> None:
    """What follows joins; what is computed before the windows stays apart, and so do reductions."""
    x, w, b = operands((7, 7))
    rest = settings(1, 3, 1)

    def function(x: Tensor, w: Tensor, b: Tensor) -> Any:
        y = aten.convolution(aten.relu(x), w, b, *rest)
        return aten.relu(y) + x, y.sum((2, 3))

    program = on_a_gpu(function, x, w, b)
    sizes = [len(s.body) for s in program.steps if isinstance(s, Nest)]
    assert len(program.steps) == 4
    assert sum(size > 30 for size in sizes) == 1
    after = coarsened(program)
    want = function(x, w, b)
    for found, expected in zip(run_program(after, [x, w, b]), want, strict=True):
        torch.testing.assert_close(found.float(), expected.float(), rtol=2e-2, atol=2e-1)


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 16, 13, 14), (5, 5), {}),
    ((2, 16, 13, 14), (5, 5), {"padding": 2}),
    ((2, 16, 13, 14), (7, 7), {"padding": (3, 1), "stride": (2, 1)}),
    ((2, 16, 13, 14), (2, 4), {"padding": (0, 2), "dilation": (1, 2)}),
    ((2, 16, 13, 14), (1, 5), {"padding": (0, 4)}),
    ((3, 6, 40), (4,), {"padding": 3}),
    ((2, 4, 5, 6, 7), (2, 3, 3), {"padding": 1}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "taps", "settings", "last"),
    [(*case, last) for case in SHAPES for last in (False, True) if len(case[0]) == 4 or not last],
    ids=str,
)
def test_gradients_of_filters_on_a_cpu_are_nests(
    shape: tuple[int, ...], taps: tuple[int, ...], settings: Any, last: bool, dtype: torch.dtype
) -> None:
    convolve = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[len(shape)]

    def gradients(x: Tensor, w: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        y = convolve(x, w, b, groups=shape[1], **settings)
        return torch.autograd.grad(y, (x, w, b), g)

    torch.manual_seed(0)
    x, w, b = torch.randn(shape), torch.randn(shape[1], 1, *taps), torch.randn(shape[1])
    g = torch.randn_like(convolve(x, w, b, groups=shape[1], **settings))
    given = [t.to(dtype) for t in (x, w, b, g)]
    if last:
        given = [given[0].contiguous(memory_format=LAST), *given[1:3], given[3].contiguous(memory_format=LAST)]
    leaves = [t.requires_grad_(k < 3) for k, t in enumerate(given)]
    program = fuse(lower(traced(gradients, leaves), "test")).program
    calls = [s for s in program.steps if isinstance(s, LibraryCall) and "convolution_backward" in s.op]
    assert [call.args[-1][:2] for call in calls] == [(True, False)]
    plain = [t.detach() for t in given]
    exact = [t.double().requires_grad_(k < 3) for k, t in enumerate(plain)]
    found = run_program(program, plain)
    for got, want, truth in zip(found, gradients(*leaves), gradients(*exact), strict=True):
        assert got.stride() == want.stride()
        assert not judge(got, want, truth)


@pytest.mark.parametrize("taps", [(3, 3), (1, 3), (13, 5)])
def test_the_librarys_gradients_of_filters_stay(taps: tuple[int, int]) -> None:
    def gradient(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(F.conv2d(x, w, groups=16).sum(), (w,))

    x, w = torch.randn(2, 16, 20, 20), torch.randn(16, 1, *taps, requires_grad=True)
    program = lower(traced(gradient, [x, w]), "test")
    assert any("convolution_backward" in s.op for s in program.steps if isinstance(s, LibraryCall))


@pytest.mark.parametrize("channels", [(1, 1), (1, 4), (3, 1)])
def test_an_image_of_one_channel_is_given_as_the_library_is_fast_on_it(channels: tuple[int, int]) -> None:
    """Its channels are innermost as well as outermost: strides tell which path the library takes."""
    before, after = channels

    def step(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        y = F.conv2d(x, w, padding=1)
        return (y, *torch.autograd.grad(y, (x, w), g))

    torch.manual_seed(0)
    x, w = torch.randn(2, before, 9, 10, requires_grad=True), torch.randn(after, before, 3, 3, requires_grad=True)
    g = torch.randn(2, after, 9, 10)
    program = lower(traced(step, [x, w, g]), "test")
    calls = [s for s in program.steps if isinstance(s, LibraryCall) and "convolution" in s.op]
    turned = [int(call.args[0].strides[1]) == 1 for call in calls]
    assert turned == [channels == (1, 1)] * 2
    compiled = lamina.compile(lambda x, w: F.conv2d(x, w, padding=1), options={"strict": True})
    for function in (compiled, torch.nn.functional.conv2d):
        y = function(x, w) if function is compiled else function(x, w, padding=1)
        found = (y.detach(), *torch.autograd.grad(y, (x, w), g))
        for got, want in zip(found, step(x, w, g), strict=True):
            assert got.stride() == want.stride()
            torch.testing.assert_close(got, want.detach(), rtol=1e-4, atol=1e-4)
