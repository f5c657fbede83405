"""Graphs that write to tensors that they are given: which those are, and how they run where tensors share memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lamina.capture.own.torch_calls import in_place, name_of

__all__ = ["NORMS", "Writing", "overlaps_itself", "share_memory", "written_by"]

NORMS = {"batch_norm": False, "instance_norm": True}
"""Functions that write running statistics, which get no history, with whether they do if they are not told."""
_STATISTICS = ("running_mean", "running_var")
_MAX_NORM = {"embedding": 3, "embedding_bag": 4}
"""Where the norm is given to which rows of the second argument are scaled."""


def written_by(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The tensors among its arguments that a call of torch's may write to."""
    name = name_of(function)
    if in_place(function) or _told_in_place(function, args, kwargs):
        return (args[0] if args else kwargs.get("input"),)
    if name in _MAX_NORM:
        given = args[_MAX_NORM[name] :]
        scales = kwargs.get("max_norm") is not None or bool(given and given[0] is not None)
        return (kwargs.get("weight", args[1] if len(args) > 1 else None),) if scales else ()
    if name not in NORMS:
        return ()
    told = args[5] if len(args) > 5 else NORMS[name]
    if not kwargs.get("training", kwargs.get("use_input_stats", told)):
        return ()
    first = 1 if hasattr(function, "__code__") else 3  # of torch.nn.functional's, or of torch's own
    given = tuple(args[first : first + 2]) + tuple(kwargs.get(key) for key in _STATISTICS)
    return tuple(value for value in given if value is not None)


def _told_in_place(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a function's argument ``inplace`` is true."""
    if "inplace" in kwargs:
        return bool(kwargs["inplace"])
    code = getattr(function, "__code__", None)
    names = () if code is None else code.co_varnames[: min(code.co_argcount, len(args))]
    return "inplace" in names and bool(args[names.index("inplace")])


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements of ``tensor`` may lie at one address, so that eager refuses to write to it."""
    extent = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride < extent:
                return True
            extent = stride * size
    return False


def share_memory(tensors: Sequence[torch.Tensor], written: Sequence[int]) -> bool:
    """Whether one of the ``tensors`` that are ``written``, by their positions, lies in the memory of another."""
    memories = [tensor.untyped_storage().data_ptr() if tensor.numel() else 0 for tensor in tensors]
    return any(memories[at] and memories.count(memories[at]) > 1 for at in written)


class Writing:
    """A graph that writes to those of its inputs that are ``written``, which ``compiled`` takes for apart from others.

    ``calls`` makes its calls one by one, for inputs that are not.
    """

    def __init__(self, compiled: Callable[..., Any], calls: Callable[..., Any], written: tuple[int, ...]) -> None:
        self.compiled, self.calls, self.written = compiled, calls, written

    def __call__(self, *inputs: torch.Tensor) -> Any:
        return (self.calls if share_memory(inputs, self.written) else self.compiled)(*inputs)
