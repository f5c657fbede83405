"""Arguments and results of torch's calls: tensors and constants within tuples, lists, dictionaries and slices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Node

from lamina.capture.own.torch_calls import constant, is_constant

__all__ = ["flat", "frozen", "mapped", "tensors", "tensors_only"]


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with ``change`` applied to everything in its tuples, lists, dictionaries and slices."""
    if isinstance(value, (tuple, list)):
        parts = [mapped(part, change) for part in value]
        return parts if type(value) is list else tuple(parts)
    if type(value) is dict:
        return {key: mapped(part, change) for key, part in value.items()}
    if type(value) is slice:
        return slice(*(mapped(part, change) for part in (value.start, value.stop, value.step)))
    return change(value)


def tensors(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``change`` for tensors only."""
    return lambda value: change(value) if isinstance(value, torch.Tensor) else value


def flat(value: Any) -> Iterable[torch.Tensor]:
    """All tensors in ``value``, in order."""
    if issubclass(type(value), torch.Tensor):
        yield value
    elif issubclass(type(value), (tuple, list)):
        for part in value:
            yield from flat(part)
    elif issubclass(type(value), dict):
        for part in value.values():
            yield from flat(part)


def tensors_only(value: Any) -> bool:
    """Whether ``value`` is a tensor, or a sequence of tensors, beside which it may have None in place of others."""
    if issubclass(type(value), torch.Tensor):
        return True
    there = [part for part in value if part is not None] if isinstance(value, (tuple, list)) else []
    return bool(there) and all(map(tensors_only, there))


def frozen(value: Any, numbers: dict[Any, int]) -> Any:
    """The arguments of a node, or of a call, as a key."""
    if isinstance(value, Node):
        return "node", numbers[value]
    if issubclass(type(value), torch.Tensor):
        return "tensor", numbers[id(value)]
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, *(frozen(part, numbers) for part in value))
    if isinstance(value, dict):
        return tuple((key, frozen(part, numbers)) for key, part in value.items())
    if isinstance(value, slice):
        return ("slice", *(frozen(part, numbers) for part in (value.start, value.stop, value.step)))
    return constant(value) if is_constant(value) else value
