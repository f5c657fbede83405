"""Changes of few elements of a library call's result: stored where it is, with the values of the copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.ir.loops import Load, LoopProgram, Nest, Store
from lamina.ir.loops_interp import run_program
from lamina.ir.loops_verify import verify_program
from lamina.schedule.fuse import fuse
from lamina.schedule.masked_update import overwrite_results
from tests.schedule.test_in_place import program_of

ROWS = torch.tensor([[False], [True], [False], [True]])


def on(program: LoopProgram, device: str) -> LoopProgram:
    return replace(program, buffers=tuple(replace(b, device=device) for b in program.buffers))


def operands(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(3, 4, 5, generator=generator).to(dtype),
        torch.randn(3, 5, 6, generator=generator).to(dtype),
        ROWS,
    )


def check(function: Callable[..., Any], *args: Tensor) -> tuple[LoopProgram, int]:
    """The program with changes in place, after running it and the fused one, and how many changes there are."""
    lowered = on(program_of(function, *args), "cuda:0")
    made, decisions = overwrite_results(lowered, "fast")
    expected = function(*args)
    for program in (made, fuse(lowered).program):
        verify_program(program)
        torch.testing.assert_close(
            list(run_program(on(program, "cpu"), [a.clone() for a in args])), list(expected), rtol=0, atol=0
        )
    return made, len(decisions)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_the_rows_that_change_are_stored(dtype: torch.dtype) -> None:
    made, changes = check(lambda a, b, c: (torch.bmm(a, b).masked_fill(c, 7.0),), *operands(dtype))
    (nest,) = [s for s in made.steps if isinstance(s, Nest)]
    (store,) = [e for e in nest.body if isinstance(e, Store)]
    assert changes == 1
    assert store.mask is not None
    assert [e.buffer for e in nest.body if isinstance(e, Load)] == [made.inputs[2]]


def test_a_choice_between_tensors_reads_the_new_one_only() -> None:
    def function(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return (torch.where(c, a.sum(-1, keepdim=True), torch.bmm(a, b)),)

    made, changes = check(function, *operands())
    assert changes == 1
    assert len([s for s in made.steps if isinstance(s, Nest)]) == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, c: (y := torch.bmm(a, b), y.masked_fill(c, 7.0)),  # the old value is returned
        lambda a, b, c: (y := torch.bmm(a, b)) is not None and (y.masked_fill(c, 7.0), y + 1),  # and read
        lambda a, b, c: (torch.bmm(a, b).masked_fill(c, 7.0) + 1,),  # another kernel reads the new one
        lambda a, b, c: ((a + 1).masked_fill(c, 7.0),),  # no library call makes the old one
        lambda a, b, c: (torch.bmm(a, b).masked_fill(c, 7.0).double(),),
        lambda a, b, c: (a.masked_fill(c, 7.0),),
    ],
)
def test_what_must_stay_a_copy(function: Callable[..., Any]) -> None:
    made, changes = check(function, *operands())
    stores = [e for s in made.steps if isinstance(s, Nest) for e in s.body if isinstance(e, Store)]
    assert changes == 0
    assert not any(e.mask for e in stores)


def test_what_is_stored_may_be_made_of_the_old_values() -> None:
    def function(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        y = torch.bmm(a, b)
        return (torch.where(c, y.flip(1) + 1, y),)

    assert check(function, *operands())[1] == 1


def test_a_processor_keeps_the_copy() -> None:
    lowered = program_of(lambda a, b, c: (torch.bmm(a, b).masked_fill(c, 7.0),), *operands())
    assert overwrite_results(lowered, "fast") == (lowered, ())
