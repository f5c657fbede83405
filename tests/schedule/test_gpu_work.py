"""Bytes that a nest moves on a GPU where its runs in memory are shorter than sectors."""

import torch
from torch import Tensor

from lamina.ir.loops import Nest
from lamina.ir.loops_interp import run_program
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.gpu_work import work
from tests.lower.torch_private import traced
from tests.schedule.test_gathers import on

MANY = 1 << 24


def time_of(forward, *shapes: tuple[int, ...]) -> float:
    """The time of a program's nests, one after the other, in bytes."""
    program = lower(traced(forward, [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes]), "t")
    return sum(work(step, program.buffer_map()) for step in program.steps if isinstance(step, Nest))


def interleaved(*pieces: Tensor) -> Tensor:
    return torch.stack([piece * 0.5 for piece in pieces], -1)


def test_pieces_side_by_side_cost_less_than_pieces_that_alternate() -> None:
    """Three nests store every third element each: every sector is written in part, three times."""
    side_by_side = time_of(lambda *pieces: torch.stack([p * 0.5 for p in pieces]), *[(MANY,)] * 3)
    assert time_of(interleaved, *[(MANY,)] * 3) > 2 * side_by_side


def test_long_runs_cost_what_they_hold() -> None:
    runs = time_of(lambda x, y: torch.cat([x * 2, y * 2], -1), (MANY // 64, 64), (MANY // 64, 64))
    assert runs < 1.2 * time_of(lambda x, y: torch.cat([x * 2, y * 2]), (MANY,), (MANY,))


def test_a_strided_read_takes_whole_sectors() -> None:
    dense = time_of(lambda x: x * 2, (MANY // 4,))
    strided = time_of(lambda x: x[::4] * 2, (MANY,))
    assert 2 * dense < strided < 3 * dense


def test_pieces_that_alternate_are_one_nest() -> None:
    pieces = [torch.randn(1 << 20, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    program = lower(traced(lambda *p: interleaved(*p) + 0.25, pieces), "t")
    fused = fuse(on(program, "cuda:0"))
    assert len(fused.program.steps) == 1
    assert any(d.kind == "recompute" and d.taken for d in fused.decisions)
    assert torch.equal(run_program(on(fused.program, "cpu"), pieces)[0], run_program(program, pieces)[0])
