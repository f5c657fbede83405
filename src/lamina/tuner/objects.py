"""Objects of the user's opened up: the tensors that they hold, however deep."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lamina.base.accuracy import tensors

__all__ = ["opened", "spent", "tensors_in"]


def spent(value: Any) -> Any:
    """What an iterator gives, as a list; other values as they are."""
    return list(value) if isinstance(value, Iterator) else value


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors that ``value`` holds, in objects as well, in order."""
    return tensors([opened(value)])


def opened(value: Any, within: tuple[int, ...] = ()) -> Any:
    """``value`` with objects that hold tensors as mappings of what they hold, so that all of it is compared."""
    if isinstance(value, (Tensor, bool, int, float, complex, str, bytes, type(None), torch.dtype, nn.Module)):
        return value
    if id(value) in within:
        return "itself"
    within = (*within, id(value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(opened(item, within) for item in value))
    if type(value) in (tuple, list):
        return type(value)(opened(item, within) for item in value)
    if type(value) is dict:
        return {key: opened(item, within) for key, item in value.items()}
    held = _held(value)
    return value if held is None else {"class": type(value).__qualname__, **opened(held, within)}


def _held(value: Any) -> dict[Any, Any] | None:
    """What an object holds, by name; None if nothing can be told."""
    found: dict[Any, Any] = {}
    if isinstance(value, Mapping):
        found.update(value)
    elif isinstance(value, (Sequence, set, frozenset)):
        found.update(enumerate(value))
    elif callable(value):
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found.update({f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)})
    names = [n for kind in type(value).__mro__ for n in _texts(getattr(kind, "__slots__", ()))]
    found.update({n: getattr(value, n) for n in names if hasattr(value, n)})
    found.update(getattr(value, "__dict__", {}))
    return found or None


def _texts(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)
