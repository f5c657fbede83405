"""What may raise runs before what writes to inputs, and whether a program can be run again after an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lamina.ir.access import writes
from lamina.ir.loops import LibraryCall, LoopProgram
from lamina.lower.to_loops import lower
from lamina.schedule.errors import inputs_in_memory, may_raise, repeatable
from lamina.schedule.fuse import fuse


def _program(function: Callable[..., Any], *inputs: torch.Tensor) -> LoopProgram:
    return fuse(lower(make_fx(function, tracing_mode="fake")(*inputs), "program", "fast")).program


def _steps(program: LoopProgram) -> list[tuple[bool, bool]]:
    """For each step whether it may raise and whether it writes to an input."""
    inputs = inputs_in_memory(program.buffers)
    return [(may_raise(step), not inputs.isdisjoint(writes(step))) for step in program.steps]


def _repeatable(program: LoopProgram) -> bool:
    return repeatable(((step,) for step in program.steps), program.buffer_map())


def test_a_gather_and_a_write_of_one_loop_stay_apart() -> None:
    def function(x, i):
        y = x[i] + 1
        torch.ops.aten.copy_.default(x, x * 2)
        return y

    program = _program(function, torch.ones(4), torch.zeros(4, dtype=torch.int64))
    assert _steps(program) == [(True, False), (False, True)]
    assert _repeatable(program)


def test_a_write_whose_own_index_may_be_wrong_is_one_step() -> None:
    def function(cache, i, new):
        updated = torch.ops.aten.index_put.default(cache, [i], new)
        torch.ops.aten.copy_.default(cache, updated)
        return updated.sum()

    program = _program(function, torch.ones(8, 4), torch.zeros(2, dtype=torch.int64), torch.ones(2, 4))
    assert (True, True) in _steps(program)
    assert _repeatable(program), "the rows that were written are written again"


def test_a_write_that_adds_to_an_input_is_made_after_its_indices_were_checked() -> None:
    def function(cache, i, new):
        updated = torch.ops.aten.index_put.default(cache, [i], new, True)
        torch.ops.aten.copy_.default(cache, updated)
        return updated.sum()

    program = _program(function, torch.ones(8, 4), torch.zeros(2, dtype=torch.int64), torch.ones(2, 4))
    assert _steps(program)[:2] == [(True, False), (True, True)]
    assert _repeatable(program)
    unchecked = replace(program, steps=program.steps[1:])
    assert not _repeatable(unchecked)


def test_without_anything_that_may_raise_a_write_stays_where_it_is_computed() -> None:
    def function(x, y):
        z = x + y
        torch.ops.aten.copy_.default(x, z)
        return z * 2

    program = _program(function, torch.ones(4), torch.ones(4))
    assert _steps(program) == [(False, True)]


@pytest.mark.parametrize(
    ("op", "raises"),
    [("aten.mm.default", False), ("aten.linalg_inv_ex.default", True), ("aten.index.Tensor", True)],
)
def test_library_calls_that_may_raise(op: str, raises: bool) -> None:
    assert may_raise(LibraryCall("call", op, (), (), (None,))) is raises
