"""``torch.tensor`` of no numbers, as a call that makes an empty tensor: what is traced has no tensors of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

__all__ = ["without_numbers"]


def without_numbers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], torch.Tensor] | None:
    """What makes the tensor that ``torch.tensor(*args, **kwargs)`` makes of empty lists; None for any other call.

    Numbers stay a constant of the graph: backends take that, and not each of them takes calls that would fill it.
    """
    if len(args) != 1 or not {*kwargs} <= {"dtype", "device"}:
        return None
    shape, wanted, device = _shape(args[0]), kwargs.get("dtype"), kwargs.get("device")
    if shape is None or not (wanted is None or isinstance(wanted, torch.dtype)):
        return None
    dtype = torch.get_default_dtype() if wanted is None else wanted
    return lambda: torch.empty(shape, dtype=dtype, device=device)


def _shape(data: Any) -> tuple[int, ...] | None:
    """The sizes of nested lists that hold nothing; None for anything else."""
    if type(data) not in (list, tuple):
        return None
    parts = [_shape(part) for part in data]
    if not parts:
        return (0,)
    first = parts[0]
    return None if first is None or any(part != first for part in parts) else (len(parts), *first)
