"""Calls that put rows of attention right write to the library's results themselves, if nothing else needs those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.masked_rows.operations import (
    WRITING,
    fill_forward_,
    fill_masked_rows,
    fill_masked_rows_backward,
    fill_masked_rows_forward,
)
from tests.lower.harness import outcome


def _tensors() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    queries, value = (torch.randn(2, 3, n, 32, generator=generator) for n in (10, 12))
    mask = torch.zeros(2, 1, 10, 12)
    mask[0, 0, 3], mask[1, 0, 7] = -1e9, -2e9
    return queries, mask, value, fill_forward_(queries.clone(), None, mask, value)


def _result(queries: Tensor) -> Tensor:
    weight = torch.eye(32, dtype=queries.dtype, device=queries.device)
    return torch.matmul(queries, weight.expand(2, 3, 32, 32))


def _filled(queries: Tensor, mask: Tensor, value: Tensor, rows: Tensor) -> Any:
    return fill_masked_rows(_result(queries), mask, value)


def _filled_forward(queries: Tensor, mask: Tensor, value: Tensor, rows: Tensor) -> Any:
    return fill_masked_rows_forward(_result(queries), torch.matmul(queries, queries[..., :1, :].mT), mask, value)


def _sliced(queries: Tensor, mask: Tensor, value: Tensor, rows: Tensor) -> Any:
    return fill_masked_rows_forward(_result(queries), torch.matmul(queries, queries.mT)[..., :1], mask, value)


def _filled_backward(queries: Tensor, mask: Tensor, value: Tensor, rows: Tensor) -> Any:
    return fill_masked_rows_backward(_result(value), mask, rows, queries)


def _also_read(queries: Tensor, mask: Tensor, value: Tensor, rows: Tensor) -> Any:
    result = _result(queries)
    return fill_masked_rows(result, mask, value), result


def _an_input(queries: Tensor, mask: Tensor, value: Tensor, rows: Tensor) -> Any:
    return fill_masked_rows(queries, mask, value)


@pytest.mark.parametrize(
    ("function", "copies"),
    [(_filled, 0), (_filled_backward, 0), (_filled_forward, 0), (_sliced, 1), (_also_read, 1), (_an_input, 1)],
)
def test_only_what_something_else_needs_is_copied(function: Callable[..., Any], copies: int) -> None:
    tensors = _tensors()
    found, plain = outcome(function, tensors), outcome(lambda q, m, v, r: _result(q), tensors)
    assert not found.complaints
    assert any(op in WRITING for op, _ in found.library)
    assert found.nests - (plain.nests if function is not _an_input else 0) == copies
