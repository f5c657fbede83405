"""Graphs that write to tensors that they are given: which those are, and how they run where tensors share memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lamina.base.aliasing import is_elementwise, sets_a_part
from lamina.base.byte_ranges import span
from lamina.base.recipes import made_of
from lamina.base.torch_private import storage_of
from lamina.capture.own.torch_calls import in_place, name_of, writes_to_list

__all__ = [
    "NORMS",
    "Anew",
    "Meeting",
    "Pair",
    "Writing",
    "is_elementwise_write",
    "may_meet",
    "overlaps_itself",
    "part_at",
    "part_of",
    "written_by",
]

NORMS = {"batch_norm": False, "instance_norm": True}
"""Functions that write running statistics, which get no history, with whether they do if they are not told."""
_STATISTICS = ("running_mean", "running_var")
_MAX_NORM = {"embedding": 3, "embedding_bag": 4}
"""Where the norm is given to which rows of the second argument are scaled."""


def written_by(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The tensors among its arguments that a call of torch's may write to."""
    name = name_of(function)
    if writes_to_list(function):
        return tuple(args[0])
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


def is_elementwise_write(function: Any, args: Sequence[Any]) -> bool:
    """Whether each element that a call writes depends on its operands' elements at that very place only."""
    if name_of(function) == "__setitem__":
        return len(args) > 1 and sets_a_part(args[1])
    return is_elementwise(name_of(function))


def part_at(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """What an assignment to what is at ``index`` writes to: not the whole of ``tensor``."""
    try:
        with torch.no_grad():
            return tensor.detach()[index]
    except (IndexError, ValueError, TypeError):
        return tensor  # eager says what is wrong


def may_meet(inputs: Sequence[torch.Tensor], written: Sequence[int], apart_by_place: bool) -> bool:
    """Whether one of the ``inputs`` that are ``written``, by their positions, may have memory in common with another.

    If they are ``apart_by_place``, it is enough that they lie at other places of one storage.
    """
    memories = [storage_of(tensor) if tensor.layout is torch.strided and tensor.numel() else 0 for tensor in inputs]
    shared = {memory for memory, count in Counter(memories).items() if memory and count > 1}
    for at in written if shared else ():
        if memories[at] not in shared:
            continue
        if not apart_by_place:
            return True
        mine = span(inputs[at])
        others = (k for k, memory in enumerate(memories) if memory == memories[at] and k != at)
        if any(_overlap(mine, span(inputs[k])) for k in others):
            return True
    return False


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two inputs of which a call writes to a part of one and reads a part of the other.

    The parts are ranges of bytes, from where the input itself begins.
    """

    written: int
    read: int
    to: tuple[int, int]
    of: tuple[int, int]

    def meet(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether the parts have memory in common."""
        one, other = inputs[self.written], inputs[self.read]
        return storage_of(one) == storage_of(other) and _overlap(_moved(self.to, one), _moved(self.of, other))


def part_of(tensor: torch.Tensor, whole: torch.Tensor) -> tuple[int, int]:
    """The bytes of a view, from where ``whole`` begins."""
    return _moved(span(tensor), whole, -1)


def _moved(part: tuple[int, int], whole: torch.Tensor, sign: int = 1) -> tuple[int, int]:
    start = sign * int(whole.storage_offset()) * whole.element_size()
    return part[0] + start, part[1] + start


class Anew(Exception):
    """A graph has not written to anything yet: the call can be begun anew."""


class Meeting(Anew):
    """A call would write to memory that it reads by another input."""


def _nobody() -> None:
    """Nobody is told."""


class Writing:
    """A graph that writes to those of its inputs that are ``written``, which ``compiled`` takes for apart from others.

    ``calls`` makes its calls one by one, for inputs that are not. ``pairs`` are those of which one call writes to the
    one and reads the other. ``apart_by_place``: inputs that lie at other places of one storage are apart. ``told`` is
    called where the calls are made one by one.
    """

    def __init__(
        self,
        compiled: Callable[..., Any],
        calls: Callable[..., Any],
        written: tuple[int, ...],
        pairs: tuple[Pair, ...],
        apart_by_place: bool,
    ) -> None:
        self.compiled, self.calls, self.written, self.pairs = compiled, calls, written, pairs
        self.apart_by_place = apart_by_place
        self.told: Callable[[], None] = _nobody
        parts = {"compiled": compiled, "calls": calls, "written": written, "pairs": pairs}
        made_of(self, "writing", **parts, apart_by_place=apart_by_place)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        return self.chosen(inputs)(*inputs)

    def chosen(self, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        """What runs for these inputs; nothing is written yet."""
        return self._one_by_one() if may_meet(inputs, self.written, self.apart_by_place) else self.compiled

    def _one_by_one(self) -> Callable[..., Any]:
        self.told()
        return self.calls

    def unless_they_meet(self, *inputs: torch.Tensor) -> Any:
        """The same where no call writes to memory that it reads by another input; raises ``Meeting`` before anything.

        Eager may refuse such a call, at its place in the program.
        """
        if not may_meet(inputs, self.written, self.apart_by_place):
            return self.compiled(*inputs)
        if any(pair.meet(inputs) for pair in self.pairs):
            raise Meeting
        return self._one_by_one()(*inputs)
