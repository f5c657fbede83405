"""Updates of an input in its own memory: what is moved is the slice, and the values are those of the copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lamina.ir.access import reads, writes
from lamina.ir.loops import LibraryCall, LoopProgram, Nest
from lamina.ir.loops_interp import run_program
from lamina.ir.loops_verify import verify_program
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.in_place import update_in_place

Function = Callable[..., Any]
CACHE = (2, 4, 32, 8)
SLICE = 2 * 4 * 8


def program_of(function: Function, *args: torch.Tensor) -> LoopProgram:
    return lower(make_fx(function, tracing_mode="fake")(*args), "test")


def points(program: LoopProgram, buffer: str) -> int:
    """Points of the nests that touch ``buffer``."""
    total = 0
    for step in program.steps:
        if isinstance(step, Nest) and buffer in reads(step) | writes(step):
            count = 1
            for axis in step.axes:
                count *= int(axis.extent)
            total += count
    return total


def check(function: Function, *args: torch.Tensor) -> tuple[LoopProgram, list[str]]:
    """The program with its updates made in place, after running it and the fused one, and the refusals."""
    lowered = program_of(function, *args)
    made, decisions = update_in_place(lowered, "fast")
    verify_program(made)
    for program in (made, fuse(lowered).program):
        verify_program(program)
        wanted, got = [a.clone() for a in args], [a.clone() for a in args]
        expected = function(*wanted)
        torch.testing.assert_close(list(run_program(program, got)), list(expected))
        torch.testing.assert_close(got, wanted)
    return made, [d.reason for d in decisions if not d.taken]


def cache() -> torch.Tensor:
    return torch.randn(*CACHE)


def row() -> torch.Tensor:
    return torch.randn(2, 4, 1, 8)


def sliced(cache, k):
    cache.copy_(torch.slice_scatter(cache, k * 2, 2, 5, 6))
    return (k + 1,)


def selected(cache, k):
    cache.copy_(torch.select_scatter(cache, k[:, :, 0], 2, 5))
    return (k + 1,)


def put(cache, k, at):
    cache.copy_(torch.ops.aten.index_put(cache, [None, None, at], k))
    return (k + 1,)


def index_copied(cache, k, at):
    cache.copy_(torch.index_copy(cache, 2, at, k))
    return (k + 1,)


def accumulated(cache, k, at):
    cache.copy_(torch.index_add(cache, 2, at, k))
    return (k + 1,)


@pytest.mark.parametrize("function", [sliced, selected, put, index_copied, accumulated])
def test_only_the_slice_is_touched(function):
    at = (torch.tensor([7]),) if function in (put, index_copied, accumulated) else ()
    made, refused = check(function, cache(), row(), *at)
    assert not refused
    assert points(made, made.inputs[0]) == SLICE
    assert points(program_of(function, cache(), row(), *at), made.inputs[0]) > 20 * SLICE


def test_readers_of_the_new_value_read_the_input():
    def function(cache, k):
        new = torch.slice_scatter(cache, k, 2, 5, 6)
        total = new.sum(-1)
        cache.copy_(new)
        return (total,)

    made, refused = check(function, cache(), row())
    assert not refused
    assert points(made, made.inputs[0]) == SLICE + 2 * 4 * 32 * 8


def test_a_library_call_reads_the_input():
    def function(cache, k):
        new = torch.slice_scatter(cache, k, 2, 5, 6)
        scores = torch.bmm(k.view(8, 1, 8), new.view(8, 32, 8).transpose(1, 2))
        cache.copy_(new)
        return (scores,)

    made, refused = check(function, cache(), row())
    assert not refused
    (call,) = [s for s in made.steps if isinstance(s, LibraryCall)]
    assert made.inputs[0] in reads(call)
    assert points(made, made.inputs[0]) == SLICE


def test_two_updates_one_after_the_other():
    def function(cache, k):
        first = torch.slice_scatter(cache, k, 2, 5, 6)
        cache.copy_(torch.slice_scatter(first, k * 2, 2, 9, 10))
        return (k + 1,)

    made, refused = check(function, cache(), row())
    assert not refused
    assert points(made, made.inputs[0]) == 2 * SLICE


def test_a_row_moved_within_the_input():
    def function(cache, k):
        cache.copy_(torch.slice_scatter(cache, cache[:, :, 6:7] + k, 2, 5, 6))
        return (k + 1,)

    made, refused = check(function, cache(), row())
    assert not refused
    assert points(made, made.inputs[0]) == 2 * SLICE


def test_overlapping_rows_are_moved_by_way_of_memory_of_their_own():
    def function(cache, k):
        cache.copy_(torch.slice_scatter(cache, cache[:, :, 4:30] + k, 2, 5, 31))
        return (k + 1,)

    check(function, cache(), row())


def read_after(cache, k):
    new = torch.slice_scatter(cache, k, 2, 5, 6)
    old = torch.bmm(k.view(8, 1, 8), cache.view(8, 32, 8).transpose(1, 2))
    cache.copy_(new)
    return (old,)


def replaced(cache, k):
    cache.copy_(cache * 2 + k)
    return (k + 1,)


def with_gaps(cache, k):
    cache.copy_(torch.slice_scatter(cache, k.expand(2, 4, 4, 8), 2, 0, 16, 4))
    return (k + 1,)


def chosen_by_value(cache, k):
    cache.copy_(torch.where(cache > 0, k, cache))
    return (k + 1,)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (read_after, "the old value is read after the update"),
        (replaced, "not the old one with a part replaced"),
        (with_gaps, "not the old one with a part replaced"),
        (chosen_by_value, "not the old one with a part replaced"),
    ],
)
def test_what_cannot_be_done_in_place_says_why(function, reason):
    _, refused = check(function, cache(), row())
    assert len(refused) == 1
    assert reason in refused[0]


def test_a_new_value_that_is_returned_is_copied():
    def function(cache, k):
        new = torch.slice_scatter(cache, k, 2, 5, 6)
        cache.copy_(new)
        return (new,)

    _, refused = check(function, cache(), row())
    assert refused == ["the new value is returned, or is that of another input"]
