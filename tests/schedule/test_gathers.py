"""Nests that gather from a concatenation read its pieces, on a GPU; assertions are checks beside what they test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lamina.ir.access import reads
from lamina.ir.loops import Check, LibraryCall, LoopProgram, Nest
from lamina.ir.loops_interp import run_program
from lamina.ir.loops_verify import verify_program
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.split import split_concats
from tests.lower.torch_private import traced
from tests.schedule.test_in_place import program_of

ROWS = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
PLACES = torch.tensor([0, 6, 3, 5, 6, 1])


def on(program: LoopProgram, device: str) -> LoopProgram:
    return replace(program, buffers=tuple(replace(b, device=device) for b in program.buffers))


def with_a_row_of_ones(rows: Tensor, places: Tensor) -> tuple[Tensor]:
    return (torch.cat([rows * 2, rows.new_ones(1, 8)]).index_select(0, places),)


def before_and_after(rows: Tensor, places: Tensor) -> tuple[Tensor]:
    return (torch.cat([rows.exp(), rows], 1)[:, places + 5].sum(0),)


@pytest.mark.parametrize("function", [with_a_row_of_ones, before_and_after])
def test_each_place_is_read_from_its_piece(function: Callable[[Tensor, Tensor], tuple[Tensor]]) -> None:
    lowered = on(program_of(function, ROWS, PLACES), "cuda:0")
    made = split_concats(lowered)
    joined = {b.name for b in lowered.buffers} - {b.name for b in made.buffers}
    assert len(joined) == 1
    expected = function(ROWS, PLACES)
    for program in (made, fuse(lowered).program):
        verify_program(program)
        found = run_program(on(program, "cpu"), [ROWS.clone(), PLACES.clone()])
        torch.testing.assert_close(list(found), list(expected))
    (nest,) = fuse(on(program_of(with_a_row_of_ones, ROWS, PLACES), "cuda:0")).program.steps
    assert len(reads(nest)) == 2  # the rows and the places: nothing is joined in memory


def test_a_place_outside_of_both_pieces_is_an_error() -> None:
    lowered = on(program_of(with_a_row_of_ones, ROWS, PLACES), "cuda:0")
    with pytest.raises(IndexError, match="out of range"):
        run_program(on(fuse(lowered).program, "cpu"), [ROWS, torch.tensor([0, 1, 2, 3, 4, 7])])


def test_a_processor_joins_in_memory() -> None:
    lowered = program_of(with_a_row_of_ones, ROWS, PLACES)
    assert split_concats(lowered) is lowered


def assertive(x: Tensor) -> Tensor:
    torch.ops.aten._assert_async.msg((x > 0).all(), "all above zero")
    torch.ops.aten._assert_async.msg(x.sum() < 100, "not too many")
    return x + 1


def test_an_assertion_on_a_gpu_is_a_check_of_each_element() -> None:
    graph = traced(assertive, [torch.ones(4, 8)])
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            node.meta["val"] = torch.empty(value.shape, dtype=value.dtype, device="meta")
    program = fuse(lower(graph, "test")).program
    assert not any(isinstance(s, LibraryCall) for s in program.steps)
    checks = [e for s in program.steps if isinstance(s, Nest) for e in s.body if isinstance(e, Check)]
    assert {e.message for e in checks} == {"all above zero", "not too many"}
    run = on(program, "cpu")
    run_program(run, [torch.ones(4, 8)])
    for wrong, message in ((torch.arange(32.0).view(4, 8), "above zero"), (torch.full((4, 8), 9.0), "too many")):
        with pytest.raises(RuntimeError, match=message):
            run_program(run, [wrong])


@pytest.mark.parametrize(("rows", "nests"), [(False, 2), (True, 1)])
def test_operands_are_not_gathered_in_place_of_what_is_made_of_them(rows: bool, nests: int) -> None:
    """An element at a place of its own takes a sector of memory from each operand; a row takes what it holds."""

    def function(x: Tensor, y: Tensor, places: Tensor) -> tuple[Tensor]:
        made = x - 0.5 * y
        return (made.index_select(0, places[:, 0]) if rows else torch.gather(made, 0, places),)

    given = [torch.empty(4096, 4096, device="meta") for _ in range(2)]
    lowered = lower(traced(function, [*given, torch.empty(4096, 4096, dtype=torch.int64, device="meta")]), "t")
    assert len(fuse(on(lowered, "cuda:0")).program.steps) == nests
    assert len(fuse(on(lowered, "cpu")).program.steps) == 1


def test_elements_at_loaded_places_lie_in_sectors_of_their_own() -> None:
    """A chain of functions costs less than reading both halves of its operands wherever the places lie."""

    def function(x: Tensor, y: Tensor, places: Tensor) -> tuple[Tensor]:
        made = torch.hypot(x.sin(), y)
        return (torch.gather(made[:, 1] - made[:, 0], 0, places),)

    given = [torch.empty(4096, 2, 1024, device="meta") for _ in range(2)]
    lowered = lower(traced(function, [*given, torch.empty(4096, 1024, dtype=torch.int64, device="meta")]), "t")
    assert len(fuse(on(lowered, "cuda:0")).program.steps) > 1


@pytest.mark.parametrize(("second", "nests"), [(slice(1024, None), 2), (slice(1, 1025), 1)])
def test_two_places_of_one_operand_are_two_sectors_unless_they_are_near(second: slice, nests: int) -> None:
    def function(x: Tensor, places: Tensor) -> tuple[Tensor]:
        return (torch.gather(x[:, second] - x[:, :1024], 0, places),)

    given = [torch.empty(8192, 2048, device="meta"), torch.empty(8192, 1024, dtype=torch.int64, device="meta")]
    lowered = lower(traced(function, given), "t")
    assert len(fuse(on(lowered, "cuda:0")).program.steps) == nests
