"""``torch.tensor`` of numbers of Python's, as calls that fill a tensor: what is traced has no tensors of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

__all__ = ["filling"]

_KINDS = (bool, int, float)
_MOST = 16
"""Numbers that are filled in one by one, where they differ."""


def filling(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], torch.Tensor] | None:
    """What makes the tensor that ``torch.tensor(*args, **kwargs)`` makes; None where only that call can tell."""
    if len(args) != 1 or not {*kwargs} <= {"dtype", "device"}:
        return None
    data, wanted, device = args[0], kwargs.get("dtype"), kwargs.get("device")
    shape = _shape(data)
    if shape is None or not (wanted is None or isinstance(wanted, torch.dtype)):
        return None
    numbers = [*_numbers(data)]
    dtype = _dtype(numbers) if wanted is None else wanted
    if not all(_fits(number, dtype) for number in numbers):
        return None
    if not numbers:
        return lambda: torch.empty(shape, dtype=dtype, device=device)
    if all(_is_same(number, numbers[0]) for number in numbers):
        return lambda: torch.full(shape, numbers[0], dtype=dtype, device=device)
    if len(numbers) > _MOST:
        return None
    return lambda: torch.stack([torch.full((), n, dtype=dtype, device=device) for n in numbers]).reshape(shape)


def _shape(data: Any) -> tuple[int, ...] | None:
    """The sizes of nested lists of numbers; None for anything else."""
    if type(data) in _KINDS:
        return ()
    if type(data) not in (list, tuple):
        return None
    parts = [_shape(part) for part in data]
    if any(part is None or part != parts[0] for part in parts):
        return None
    return (len(data), *(parts[0] or ())) if parts else (0,)


def _numbers(data: Any) -> Iterator[Any]:
    if type(data) in _KINDS:
        yield data
    else:
        for part in data:
            yield from _numbers(part)


def _dtype(numbers: Sequence[Any]) -> torch.dtype:
    if any(type(number) is float for number in numbers) or not numbers:
        return torch.get_default_dtype()
    return torch.int64 if any(type(number) is int for number in numbers) else torch.bool


def _fits(number: Any, dtype: torch.dtype) -> bool:
    """Whether ``dtype`` holds a number of this kind, so that no error or conversion is left to ``torch.tensor``."""
    if dtype is torch.bool:
        return type(number) is bool
    if dtype.is_floating_point and dtype.itemsize > 1:
        return math.isinf(number) or math.isnan(number) or abs(number) <= torch.finfo(dtype).max
    if dtype.is_floating_point or dtype.is_complex or type(number) is float:
        return False
    return bool(torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max) and dtype is not torch.uint64


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and repr(one) == repr(other)
