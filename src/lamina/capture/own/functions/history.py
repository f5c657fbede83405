"""What a function of autograd's has computed, with the history that it has in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lamina.base.torch_private import storage_of
from lamina.capture.own.functions.torch_private import in_history, is_apply, sets_up
from lamina.capture.own.pending import Pending
from lamina.capture.own.torch_private import unseen

__all__ = ["history_of", "is_apart", "parts_of", "program_of"]

_MARKS = ("to_save", "non_differentiable", "dirty_tensors", "materialize_grads")


def program_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """The arguments with which ``apply`` is to be interpreted in place of a call; None for other calls."""
    if kwargs or not is_apply(function):
        return None
    apart = sets_up(function.__self__, args)
    return None if apart is None else (function.__self__, args, apart)


def history_of(kind: Any, context: Any, args: tuple[Any, ...], output: Any) -> Any:
    """What the call of ``apply`` gives, whose forward has given ``output``."""
    given: tuple[Any, ...] = (kind, *parts_of(context), args, output)
    return in_history(*given)


def parts_of(context: Any) -> tuple[Any, ...]:
    """What a forward has left in its context: names and values of attributes, and its marks."""
    held = {name: value for name, value in vars(context).items() if name != "needs_input_grad" and name not in _MARKS}
    return tuple(held), tuple(held.values()), *(vars(context).get(name) for name in _MARKS)


def is_apart(args: tuple[Any, ...], output: Any, looks: Callable[[Any], Any]) -> bool:
    """Whether no history is wanted and the output shares no memory with what a forward was given, or with itself."""
    with unseen():
        return _is_apart(args, output, looks)


def _is_apart(args: tuple[Any, ...], output: Any, looks: Callable[[Any], Any]) -> bool:
    outputs = output if type(output) is tuple else (output,)
    if not all(type(one) is Pending for one in outputs):
        return False
    given = [looks(arg) for arg in args if isinstance(arg, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        return False
    memory = [storage_of(looks(tensor)) for tensor in outputs]
    return len({*memory}) == len(memory) and {*memory}.isdisjoint(map(storage_of, given))
