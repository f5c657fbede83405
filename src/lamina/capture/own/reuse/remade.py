"""Calls of torch's between graphs that a later call makes anew, as all that they do is to give new tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lamina.capture.own.reuse.facts import is_settled
from lamina.capture.own.torch_calls import LAYERS_OF_STEPS, name_of

__all__ = ["Remade", "looks_of", "remade"]


@dataclass(frozen=True, slots=True)
class Remade:
    """How a call is made anew: by a ``function``. ``spoils``: it draws random numbers, or writes; ``sized``: what its
    results look like depends on values; ``calls_back``: their backward is the user's.
    """

    function: Callable[..., Any]
    spoils: bool = False
    sized: bool = False
    calls_back: bool = False


def data_of(tensor: torch.Tensor) -> torch.Tensor:
    """What has the values of a tensor, without a history, whose writes autograd does not see."""
    return tensor.data


def looks_of(*tensors: torch.Tensor) -> tuple[Any, ...]:
    """What tensors look like."""
    return tuple((t.dtype, tuple(t.shape), t.stride(), t.storage_offset()) for t in tensors)


_TENSORS = (torch.Tensor, torch.nn.Parameter)
_SIZED = {
    torch.nonzero: torch.nonzero,
    torch.Tensor.nonzero: torch.nonzero,
    torch.unique: torch.unique,
    torch.masked_select: torch.masked_select,
    torch.Tensor.masked_select: torch.masked_select,
}


def _is_masked(index: Any) -> bool:
    """Whether an index has a mask, beside which it may have slices and constants."""
    parts = index if type(index) is tuple else (index,)
    masks = [part for part in parts if type(part) in _TENSORS and part.dtype is torch.bool]
    return bool(masks) and all(type(part) in _TENSORS or is_settled(part) for part in parts)


def remade(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Remade | None:
    """How a later call makes a call of torch's anew; None for one of which it is not known what it does."""
    name = name_of(function)
    if kwargs:
        return None
    if name == "data" and getattr(function, "__name__", "") == "__get__":
        return Remade(data_of)
    if name in LAYERS_OF_STEPS and function is getattr(torch, name) and len(args) == 9:
        packed = type(args[2]) is not list  # whose sequences have lengths of their own
        dropout, training = args[6:8] if packed else args[5:7]
        return Remade(function, spoils=bool(dropout and training), sized=packed)
    if name == "__getitem__" and len(args) == 2 and _is_masked(args[1]):
        return Remade(operator.getitem, sized=True)
    if function is torch.where and len(args) == 1:
        return Remade(torch.where, sized=True)
    if function in _SIZED and len(args) == (2 if name == "masked_select" else 1):
        return Remade(_SIZED[function], sized=True)
    return None
