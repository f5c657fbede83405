"""Runs a function eagerly and through trace, lowering and interpreter, and says how they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lamina.ir.index import Size
from lamina.ir.loops import LibraryCall, LoopProgram, Nest, SizeInput
from lamina.ir.loops_interp import run_program
from lamina.lower.to_loops import lower
from lamina.testing import FLOOR_ULPS, judge, tensors

from .torch_private import FakeTensorMode, traced

__all__ = ["Outcome", "check", "for_a_gpu", "outcome"]

DOUBLE_ULPS = 1e4
"""For float64 eager is its own reference: what is allowed is rounding, a thousand times below any wrong formula."""


@dataclass(frozen=True)
class Outcome:
    """What came of one function: complaints about results, the nests made, and the library calls with reasons."""

    complaints: tuple[str, ...]
    nests: int
    library: tuple[tuple[str, str], ...]


def _sized(program: LoopProgram, args: Sequence[torch.Tensor]) -> tuple[LoopProgram, list[Any]]:
    """The program with its size symbols as further inputs, and their values."""
    extra: list[SizeInput] = []
    values: list[int] = []
    buffers = program.buffer_map()
    for name, arg in zip(program.inputs, args, strict=True):
        assert isinstance(name, str)
        for extent, value in zip(buffers[name].shape, arg.shape, strict=True):
            atoms = extent.atoms()
            if len(atoms) == 1 and isinstance(next(iter(atoms)), Size) and extent not in [e.expr for e in extra]:
                extra.append(SizeInput(str(extent), extent))
                values.append(value)
    return replace(program, inputs=(*program.inputs, *extra)), [*args, *values]


def _double(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def _copies(args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [a.detach().clone(memory_format=torch.preserve_format).requires_grad_(a.requires_grad) for a in args]


def for_a_gpu(fn: Callable[..., Any], args: Sequence[torch.Tensor]) -> LoopProgram:
    """The program for tensors on a GPU, with its buffers moved to the CPU."""
    with FakeTensorMode():
        given = [torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="cuda") for a in args]
        program = lower(traced(fn, given), "test")
    return replace(program, buffers=tuple(replace(b, device="cpu") for b in program.buffers))


def outcome(fn: Callable[..., Any], args: Sequence[torch.Tensor], symbolic: bool = False, gpu: bool = False) -> Outcome:
    """Compare ``fn(*args)`` with the interpreted program, strides included, floats against double precision.

    With ``gpu`` the program is the one that there would be for a GPU.
    """
    eager = tensors(fn(*_copies(args)))
    exact = tensors(fn(*[_double(a) for a in _copies(args)]))
    program = for_a_gpu(fn, args) if gpu else lower(traced(fn, _copies(args), symbolic), "test")
    sized, values = _sized(program, _copies(args))
    ours = list(run_program(sized, [v.detach() if isinstance(v, torch.Tensor) else v for v in values]))
    ours = [v for v in ours if isinstance(v, torch.Tensor)]
    complaints = [] if len(ours) == len(eager) else [f"{len(ours)} results, eager has {len(eager)}"]
    for mine, theirs, reference in zip(ours, eager, exact, strict=False):
        floor = DOUBLE_ULPS if mine.dtype is torch.float64 else FLOOR_ULPS
        complaint = judge(mine, theirs.detach(), reference.detach(), floor=floor, strides=not symbolic)
        if complaint:
            complaints.append(complaint)
    nests = sum(isinstance(s, Nest) for s in program.steps)
    library = tuple((s.op, s.reason) for s in program.steps if isinstance(s, LibraryCall))
    return Outcome(tuple(complaints), nests, library)


def check(fn: Callable[..., Any], *args: torch.Tensor, symbolic: bool = False, gpu: bool = False) -> None:
    """Assert that the results agree and that everything ran in nests."""
    found = outcome(fn, args, symbolic, gpu)
    assert not found.complaints, found.complaints
    assert not found.library, found.library
    assert found.nests
