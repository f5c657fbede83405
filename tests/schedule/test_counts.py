"""Sums of truth values and small integers are made in 32 bits where they fit, and equal what 64 bits give."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lamina.ir.loops import LoopProgram, Nest, Reduce
from lamina.ir.loops_interp import run_program
from lamina.ir.loops_verify import verify_program
from lamina.lower.to_loops import lower
from lamina.schedule.counts import narrow_counts
from lamina.schedule.memo import Memo
from tests.lower.torch_private import traced


def _sums(program: LoopProgram) -> list[str]:
    body = [e for step in program.steps if isinstance(step, Nest) for e in step.body]
    return [e.dtype for e in body if isinstance(e, Reduce) and e.op == "sum"]


def _positive(x: Tensor) -> Tensor:
    return (x > 0).sum(-1)


def _numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    drawn = 40 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return drawn.clamp(-128, 127).to(dtype) if dtype != torch.uint8 else drawn.abs().to(dtype)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (_positive, _numbers(6, 50)),
        (lambda x: (x > 0).sum(), _numbers(6, 50)),
        (lambda x: x.sum(0), _numbers(6, 50, dtype=torch.uint8)),
        (lambda x: x.sum(-1), torch.full((3, 1000), -128, dtype=torch.int8)),
    ],
    ids=["bool", "all", "uint8", "int8"],
)
def test_small_values_are_counted_in_32_bits(function: Callable[[Tensor], Tensor], given: Tensor) -> None:
    program = lower(traced(function, [given]), "test")
    assert _sums(program) == ["int64"]
    narrow = narrow_counts(program, Memo())
    verify_program(narrow)
    assert _sums(narrow) == ["int32"]
    (found,) = run_program(narrow, [given])
    assert found.dtype == torch.int64
    assert torch.equal(found, function(given))


@pytest.mark.parametrize(
    ("function", "shape", "dtype"),
    [
        (_positive, (2, 1 << 31), torch.float32),
        (lambda x: x.sum(-1), (1 << 24,), torch.int8),
        (lambda x: x.sum(-1), (6, 50), torch.int32),
        (lambda x: x.sum(-1), (6, 50), torch.int64),
    ],
    ids=["many", "large", "int32", "int64"],
)
def test_sums_that_may_not_fit_stay(
    function: Callable[[Tensor], Tensor], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    given = torch.zeros((1,), dtype=dtype).expand(shape)
    program = lower(traced(function, [given]), "test")
    assert narrow_counts(program, Memo()) is program
    assert _sums(program) == ["int64"]


def test_what_is_counted_may_be_read_again() -> None:
    given = _numbers(6, 50)
    program = lower(traced(lambda x: (x > 0).to(torch.int64) - (x > 0).sum(-1, keepdim=True), [given]), "test")
    narrow = narrow_counts(program, Memo())
    verify_program(narrow)
    (found,) = run_program(narrow, [given])
    assert torch.equal(found, (given > 0).to(torch.int64) - (given > 0).sum(-1, keepdim=True))


def test_a_nest_is_looked_at_once() -> None:
    program, memo = lower(traced(_positive, [_numbers(6, 50)]), "test"), Memo()
    assert narrow_counts(program, memo).steps[0] is narrow_counts(program, memo).steps[0]
