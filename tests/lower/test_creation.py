"""Tensors made from nothing, casts, copies and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lamina.decomp.random_ops as random_ops
from lamina.base.philox import uniform
from lamina.ir.loops import Nest, Random
from lamina.ir.loops_interp import run_program
from lamina.lower.to_loops import CannotLower, lower

from .harness import check, outcome
from .torch_private import traced

aten = torch.ops.aten
MADE: dict[str, Callable[[torch.Tensor], Any]] = {
    "full": lambda x: torch.full((2, 3), 1.5),
    "full_integer": lambda x: torch.full((2, 3), 2.9, dtype=torch.int32),
    "full_bool": lambda x: torch.full((2,), True),
    "full_like": lambda x: torch.full_like(x, -2),
    "new_full": lambda x: x.new_full((4,), 7),
    "ones": lambda x: torch.ones(3, dtype=torch.bfloat16),
    "zeros_like": torch.zeros_like,
    "scalar_tensor": lambda x: torch.scalar_tensor(3.25),
    "arange": lambda x: torch.arange(7),
    "arange_start": lambda x: torch.arange(-3, 9, 4),
    "arange_float": lambda x: torch.arange(0.1, 2.0, 0.3),
    "arange_double": lambda x: torch.arange(1, 5, dtype=torch.float64),
    "arange_half": lambda x: torch.arange(0, 3, 0.25, dtype=torch.bfloat16),
    "linspace": lambda x: torch.linspace(-1.0, 2.0, 11),
    "linspace_one": lambda x: torch.linspace(3.0, 4.0, 1),
    "eye": lambda x: torch.eye(4),
    "eye_wide": lambda x: torch.eye(2, 5, dtype=torch.int64),
    "tril": lambda x: x.tril(1),
    "triu": lambda x: x.triu(-1),
    "fill": lambda x: aten.fill(x, 2.0),
    "fill_tensor": lambda x: aten.fill(x, x.sum()),
}


@pytest.mark.parametrize("name", MADE)
def test_made_tensors(name: str) -> None:
    check(MADE[name], torch.randn(3, 4))


def test_empty_tensors_hold_zeros_so_that_runs_agree() -> None:
    program = lower(traced(lambda x: (torch.empty(3), torch.empty_like(x), x.new_empty(2)), [torch.ones(4)]), "test")
    assert all(bool((t == 0).all()) for t in run_program(program, [torch.ones(4)]))


KINDS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool]


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("source", KINDS, ids=str)
@pytest.mark.parametrize("target", KINDS, ids=str)
def test_casts(source: torch.dtype, target: torch.dtype) -> None:
    x = torch.tensor([0.0, 1.0, 2.0, 3.75, 100.0, 0.3]).to(source)
    if source is target:
        check(lambda x: x.clone(), x)
    else:
        check(lambda x: x.to(target), x)


def test_clone_keeps_or_changes_strides_as_asked() -> None:
    x = torch.randn(2, 3, 4, 5).permute(0, 2, 3, 1)
    check(lambda x: (x.clone(), x.clone(memory_format=torch.contiguous_format)), x)
    check(lambda x: x.clone(memory_format=torch.channels_last), torch.randn(2, 3, 4, 5))


def test_a_mutated_input_is_overwritten_and_returned() -> None:
    x, y = torch.arange(5.0), torch.ones(5)
    program = lower(traced(lambda x, y: x.add_(y).mul_(2), [x.clone(), y]), "test")
    mine = x.clone()
    (result,) = run_program(program, [mine, y])
    assert torch.equal(mine, (x + 1) * 2)
    assert torch.equal(result, mine)


def test_an_input_overwritten_by_a_rearrangement_of_itself() -> None:
    check(lambda x: x.copy_(x.t().clone()), torch.arange(9.0).reshape(3, 3))
    gm = traced(lambda x: aten.copy_(x, aten.permute(x, [1, 0])), [torch.arange(9.0).reshape(3, 3)])
    x = torch.arange(9.0).reshape(3, 3)
    run_program(lower(gm, "test"), [x])
    assert torch.equal(x, torch.arange(9.0).reshape(3, 3).t())


@pytest.mark.parametrize("symbolic", [False, True])
def test_random_numbers_are_the_specified_function_of_seed_offset_and_position(symbolic: bool) -> None:
    def draw(seed: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return random_ops.philox_uniform(list(x.shape), seed, 3, torch.float32, torch.device("cpu"))

    seed, x = torch.tensor(1234567890123), torch.zeros(3, 5)
    check(draw, seed, x, symbolic=symbolic)
    (nest,) = [s for s in lower(traced(draw, [seed, x]), "test").steps if isinstance(s, Nest)]
    assert any(isinstance(e, Random) for e in nest.body)
    (result,) = run_program(lower(traced(draw, [seed, x]), "test"), [seed, x])
    assert torch.equal(result, uniform(torch.arange(15), 1234567890123, 3).reshape(3, 5))


def test_the_seed_is_drawn_by_a_library_call() -> None:
    program = lower(traced(lambda x: x + random_ops.philox_seed(torch.device("cpu")), [torch.ones(2)]), "test")
    torch.manual_seed(7)
    first = run_program(program, [torch.zeros(2)])
    torch.manual_seed(7)
    assert torch.equal(first[0], run_program(program, [torch.zeros(2)])[0])
    found = outcome(lambda x: aten.native_dropout_backward(x, x > 0, 2.0), [torch.randn(5)])
    assert not found.complaints
    assert not found.library


def test_small_literal_tensors_are_written_out() -> None:
    check(lambda x: x * torch.tensor([[1.5, -2.0], [float("inf"), 0.25]]) + torch.tensor(3), torch.rand(2, 2))
    gm = traced(lambda x: x + 1, [torch.ones(2)])
    with gm.graph.inserting_before(next(n for n in gm.graph.nodes if n.op == "call_function")):
        node = gm.graph.get_attr("table")
    gm.table = torch.zeros(1000)
    node.meta["val"] = gm.table
    with pytest.raises(CannotLower, match="1000 elements"):
        lower(gm, "test")
