"""Graphs that write to tensors that they are given: which those are, and how they run where tensors share memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lamina.base.torch_private import storage_of
from lamina.capture.own.torch_calls import in_place, name_of

__all__ = ["NORMS", "Meeting", "Writing", "overlap_in_part", "overlaps_itself", "share_memory", "written_by"]

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


def overlap_in_part(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether eager refuses that a call writes to one and reads the other, as parts of a memory that both fill."""
    if not (one.numel() and other.numel()) or storage_of(one) != storage_of(other):
        return False
    if not (_is_dense(one) and _is_dense(other)):
        return False  # which eager allows, since it cannot tell
    (first, end), (second, its_end) = ((t.storage_offset(), t.storage_offset() + t.numel()) for t in (one, other))
    if one.dtype != other.dtype:
        return True  # of which one is a view in other units
    if (first, end) == (second, its_end):
        return one.stride() != other.stride()
    return first < its_end and second < end


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether every address between the first element and the last one is that of one element."""
    extent = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != extent:
                return False
            extent *= size
    return True


def share_memory(tensors: Sequence[torch.Tensor], written: Sequence[int]) -> bool:
    """Whether one of the ``tensors`` that are ``written``, by their positions, lies in the memory of another."""
    memories = [tensor.untyped_storage().data_ptr() if tensor.numel() else 0 for tensor in tensors]
    return any(memories[at] and memories.count(memories[at]) > 1 for at in written)


class Meeting(Exception):
    """A call would write to memory that it reads by another input."""


class Writing:
    """A graph that writes to those of its inputs that are ``written``, which ``compiled`` takes for apart from others.

    ``calls`` makes its calls one by one, for inputs that are not. ``pairs`` are those of which one call writes to the
    first and reads the second.
    """

    def __init__(
        self,
        compiled: Callable[..., Any],
        calls: Callable[..., Any],
        written: tuple[int, ...],
        pairs: tuple[tuple[int, int], ...],
    ) -> None:
        self.compiled, self.calls, self.written, self.pairs = compiled, calls, written, pairs

    def __call__(self, *inputs: torch.Tensor) -> Any:
        return (self.calls if share_memory(inputs, self.written) else self.compiled)(*inputs)

    def unless_they_meet(self, *inputs: torch.Tensor) -> Any:
        """The same where no call writes to memory that it reads by another input; raises ``Meeting`` before anything.

        Eager may refuse such a call, at its place in the program.
        """
        if not share_memory(inputs, self.written):
            return self.compiled(*inputs)
        if any(storage_of(inputs[one]) == storage_of(inputs[other]) for one, other in self.pairs):
            raise Meeting
        return self.calls(*inputs)
