"""Torch's operator database: a private module of torch, named here only."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["DrawsWatch", "Sample", "first_sample", "full_name", "operators"]

DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)


@dataclass(frozen=True, slots=True)
class Sample:
    """The first sample of an operator: ``op(input, *args, **kwargs)``."""

    dtype: torch.dtype
    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class DrawsWatch(TorchDispatchMode):
    """Notes whether anything run inside draws random numbers.

    Many samples set the seed themselves, so that running twice with two seeds would not tell.
    """

    def __init__(self) -> None:
        super().__init__()
        self.draws = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.draws = self.draws or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def full_name(operator: Any) -> str:
    """Name and variant, unique in the database."""
    return f"{operator.name}.{operator.variant_test_name}" if operator.variant_test_name else str(operator.name)


def operators() -> dict[str, Any]:
    """Every operator of the database by its full name."""
    return {full_name(op): op for op in op_db}


def first_sample(operator: Any) -> Sample:
    """The first sample in float32, or in the first type of ``DTYPES`` that the operator takes.

    Raises ``LookupError`` if there is none.
    """
    for dtype in DTYPES:
        if not operator.supports_dtype(dtype, "cpu"):
            continue
        random.seed(0)
        torch.manual_seed(0)
        differentiable = operator.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
        for sample in operator.sample_inputs("cpu", dtype, requires_grad=differentiable):
            return Sample(dtype, sample.input, tuple(sample.args), dict(sample.kwargs))
    raise LookupError(f"the database has no sample of {full_name(operator)} on the CPU in {DTYPES}")
