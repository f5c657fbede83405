"""Neighbours of one point where they read the same elements: values, how much is read, and where it is left alone."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from lamina.ir.loops import Load, LoopProgram, Nest, Store
from lamina.ir.loops_interp import run_program
from lamina.ir.loops_verify import verify_program
from lamina.lower.to_loops import lower
from lamina.rewrite.pool_places import max_pool2d_offsets_backward, max_pool2d_with_offsets
from lamina.schedule.fuse import fuse
from lamina.schedule.window_coarsening import coarsen_windows
from tests.lower.torch_private import traced

aten = torch.ops.aten
LAST, FIRST = torch.channels_last, torch.contiguous_format


def on_a_gpu(function: Any, *given: Tensor) -> LoopProgram:
    """The fused program of the function as it is for a GPU, with buffers that the interpreter can make here."""
    with FakeTensorMode():
        fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda") for t in given]
        program = fuse(lower(traced(function, fakes), "t")).program
    return replace(program, buffers=tuple(replace(b, device="cpu") for b in program.buffers))


def coarsened(program: LoopProgram) -> LoopProgram:
    table = program.buffer_map()
    steps = tuple(coarsen_windows(s, table) if isinstance(s, Nest) else s for s in program.steps)
    made = replace(program, steps=steps)
    verify_program(made)
    return made


def loads(program: LoopProgram) -> list[int]:
    return [sum(isinstance(e, Load) for e in s.body) for s in program.steps if isinstance(s, Nest)]


def pool(window: tuple[Any, ...], shape: tuple[int, ...], form: torch.memory_format) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(shape)
    x[0, 0] = -inf
    x[-1, -1, 2:5, 3:6] = nan
    x = x.contiguous(memory_format=form)
    y, offsets = max_pool2d_with_offsets(x, *window, torch.int16)
    gradient = torch.randn(y.shape)
    gradient[0, 0, 0] = inf
    return gradient.contiguous(memory_format=form), x, offsets.contiguous(memory_format=form)


WINDOWS: list[tuple[tuple[Any, ...], torch.memory_format, int, int]] = [
    # window, layout, neighbours of a point, windows of which it reads the gradient
    (([3, 3], [2, 2], [1, 1], [1, 1], False), LAST, 4, 4),
    (([3, 3], [2, 2], [0, 0], [1, 1], True), LAST, 4, 4),
    (([2, 2], [2, 2], [0, 0], [1, 1], False), LAST, 4, 1),
    (([3, 2], [1, 2], [1, 0], [1, 1], False), LAST, 2, 3),
    (([5, 3], [2, 3], [2, 1], [1, 1], True), LAST, 2, 3),
    (([3, 3], [3, 3], [1, 1], [1, 1], False), LAST, 3, 2),
    (([2, 2], [2, 2], [1, 1], [2, 2], False), LAST, 4, 4),
    (([3, 3], [2, 2], [1, 1], [1, 1], False), FIRST, 4, 4),
    (([2, 2], [2, 2], [0, 0], [1, 1], False), FIRST, 2, 1),  # stores stay wide
]


@pytest.mark.parametrize(("window", "form", "parts", "read"), WINDOWS)
def test_pools_read_each_window_once(window: Any, form: torch.memory_format, parts: int, read: int) -> None:
    g, x, o = pool(window, (2, 3, 12, 18), form)

    def backward(g: Tensor, x: Tensor, o: Tensor) -> Any:
        return max_pool2d_offsets_backward(g, x, *window, o)

    before = on_a_gpu(backward, g, x, o)
    after = coarsened(before)
    (nest,) = after.steps
    assert isinstance(nest, Nest)
    assert sum(isinstance(e, Store) for e in nest.body) == parts
    assert loads(after) == [2 * read]
    torch.testing.assert_close(run_program(after, [g, x, o]), run_program(before, [g, x, o]), equal_nan=True)
    torch.testing.assert_close(run_program(after, [g, x, o])[0], backward(g, x, o), equal_nan=True)


def test_sums_over_what_a_pool_gives() -> None:
    """Each point of the reduced axes adds up its neighbours first."""
    window = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    g, x, o = pool(window, (4, 5, 8, 12), LAST)
    x = torch.randn(x.shape).contiguous(memory_format=LAST)
    g = g.clamp(-9, 9)

    def sums(g: Tensor, x: Tensor, o: Tensor) -> Any:
        p = max_pool2d_offsets_backward(g, x, *window, o)
        return (p * x).sum((0, 2, 3)), p.sum((0, 2, 3))

    before = on_a_gpu(sums, g, x, o)
    after = coarsened(before)
    assert [len(before.steps), len(after.steps)] == [1, 1]
    assert loads(before) == [9]
    assert loads(after) == [12]  # for four elements
    torch.testing.assert_close(run_program(after, [g, x, o]), list(sums(g, x, o)))


def test_average_pools() -> None:
    x = torch.randn(2, 3, 8, 12).contiguous(memory_format=LAST)
    g = F.avg_pool2d(x, 3, 2, 1)

    def backward(g: Tensor, x: Tensor) -> Any:
        return aten.avg_pool2d_backward(g, x, [3, 3], [2, 2], [1, 1], False, False, None)

    before = on_a_gpu(backward, g, x)
    after = coarsened(before)
    assert [loads(before), loads(after)] == [[4], [4]]
    torch.testing.assert_close(run_program(after, [g, x])[0], backward(g, x))


def test_three_dimensions_share_four_at_most() -> None:
    x = torch.randn(1, 2, 6, 8, 10)
    y, places = aten.max_pool3d_with_indices(x, [3, 3, 3], [2, 2, 2], [1, 1, 1])

    def backward(g: Tensor, x: Tensor, i: Tensor) -> Any:
        return aten.max_pool3d_with_indices_backward(g, x, [3, 3, 3], [2, 2, 2], [1, 1, 1], [1, 1, 1], False, i)

    g = torch.randn(y.shape)
    after = coarsened(on_a_gpu(backward, g, x, places))
    (nest,) = after.steps
    assert isinstance(nest, Nest)
    assert sum(isinstance(e, Store) for e in nest.body) == 4
    torch.testing.assert_close(run_program(after, [g, x, places])[0], backward(g, x, places))


def test_what_stays() -> None:
    odd = pool(([3, 3], [2, 2], [1, 1], [1, 1], False), (1, 2, 9, 11), LAST)
    wide = torch.randn(2, 8, 4, 6)
    rows = torch.randn(2, 4, 16), torch.randn(2, 4, 8), torch.randn(2, 4, 8)

    def doubled(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
        """Two factors of neighbours in contiguous memory, which wide accesses take together."""
        return x * F.interpolate(c, scale_factor=2.0) + F.interpolate(s, scale_factor=2.0)

    cases: list[tuple[Any, tuple[Tensor, ...]]] = [
        (lambda g, x, o: max_pool2d_offsets_backward(g, x, [3, 3], [2, 2], [1, 1], [1, 1], False, o), odd),
        (lambda x: F.interpolate(x, scale_factor=2.0), (wide,)),
        (lambda x: x * 2 + x.sum(1, keepdim=True), (wide,)),
        (doubled, rows),
    ]
    for function, given in cases:
        program = on_a_gpu(function, *given)
        table = program.buffer_map()
        for step in program.steps:
            assert not isinstance(step, Nest) or coarsen_windows(step, table) is step
