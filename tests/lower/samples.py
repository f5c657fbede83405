"""Torch's own samples of an operation, as functions of tensors alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch

from .harness import outcome
from .torch_private import OpInfo, op_db

__all__ = ["DTYPES", "Sample", "check_samples", "named", "samples"]

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)

Sample = tuple[Callable[..., Any], list[torch.Tensor]]


@cache
def _by_name() -> dict[str, OpInfo]:
    return {op.name if not op.variant_test_name else f"{op.name}.{op.variant_test_name}": op for op in op_db}


def named(name: str) -> OpInfo:
    """The entry of torch's operator database; a variant is written after a dot."""
    return _by_name()[name]


def _detached(value: Any, found: list[torch.Tensor]) -> Any:
    """``value`` with each tensor replaced by its number in ``found``."""
    if isinstance(value, torch.Tensor):
        found.append(value.detach())
        return _Place(len(found) - 1)
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(_detached(v, found) for v in value)
    if isinstance(value, dict):
        return {k: _detached(v, found) for k, v in value.items()}
    return value


class _Place:
    def __init__(self, number: int) -> None:
        self.number = number


def _attached(value: Any, given: tuple[torch.Tensor, ...]) -> Any:
    if isinstance(value, _Place):
        return given[value.number]
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(_attached(v, given) for v in value)
    if isinstance(value, dict):
        return {k: _attached(v, given) for k, v in value.items()}
    return value


def samples(name: str, dtype: torch.dtype, most: int) -> Iterator[Sample]:
    """Up to ``most`` samples of an operation in a dtype that it supports, always the same ones."""
    op = named(name)
    everything = list(op.sample_inputs("cpu", dtype, requires_grad=False))
    chosen = random.Random(name).sample(range(len(everything)), min(most, len(everything)))
    for sample in (everything[k] for k in sorted(chosen)):
        found: list[torch.Tensor] = []
        spec = _detached((sample.input, tuple(sample.args), dict(sample.kwargs)), found)

        def call(*given: torch.Tensor, spec: Any = spec) -> Any:
            first, args, kwargs = _attached(spec, given)
            return op(first, *args, **kwargs)

        yield call, found


def check_samples(name: str, dtype: torch.dtype, most: int = 4, symbolic: bool = False, gpu: bool = False) -> None:
    """Assert that samples agree with eager, and that at least one of them ran without any library call."""
    if dtype not in named(name).dtypes:
        pytest.skip(f"eager has no {dtype}")
    ours = 0
    for fn, given in samples(name, dtype, most):
        found = outcome(fn, given, symbolic, gpu)
        assert not found.complaints, ([tuple(t.shape) for t in given], found.complaints)
        ours += not found.library
    assert ours
