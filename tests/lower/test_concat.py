"""Joining and taking apart."""

from __future__ import annotations

import pytest
import torch

from lamina.ir.loops import Nest, Store
from lamina.lower.to_loops import lower

from .harness import check, outcome
from .samples import DTYPES, check_samples
from .torch_private import traced


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["cat", "stack", "hstack", "vstack", "dstack", "column_stack"])
def test_samples(name: str, dtype: torch.dtype) -> None:
    check_samples(name, dtype)


X = torch.randn(3, 4, 5)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_pieces_write_their_part_of_one_buffer(dim: int, symbolic: bool) -> None:
    check(lambda x: torch.cat([x, x * 2, x], dim), X, symbolic=symbolic)
    check(lambda x: torch.stack([x, x * 2], dim), X, symbolic=symbolic)
    program = lower(traced(lambda x: torch.cat([x, x * 2], dim), [X]), "test")
    out = program.outputs[0]
    writers = [
        s
        for s in program.steps
        if isinstance(s, Nest)
        for e in s.body
        if isinstance(e, Store) and e.buffer == getattr(out, "buffer", None)
    ]
    assert len(writers) == 2


def test_pieces_of_other_types_and_empty_ones() -> None:
    check(lambda x, y: torch.cat([x, y, x.to(torch.float64)]), X, torch.ones(2, 4, 5, dtype=torch.int32))
    check(lambda x, e: torch.cat([x, e], 1), X, torch.zeros(0))
    check(lambda x, e: torch.cat([x, e], 1), X, torch.zeros(3, 0, 5))


def test_there_and_back() -> None:
    check(lambda x: torch.cat(x.chunk(2, 1)[::-1], 1) + 1, X)
    found = outcome(lambda x: torch.cat([torch.complex(x, x), torch.complex(x, -x)]).abs(), [X])
    assert not found.complaints
    assert "aten.cat.default" in [op for op, _ in found.library]
