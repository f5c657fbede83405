"""A graph as what it has in common with all those that differ from it in integers, and these integers."""

from __future__ import annotations

import sys
from typing import Any

from torch.fx import Graph, Node
from torch.fx.node import map_aggregate

from lamina.capture.own.segment import Segment
from lamina.capture.own.torch_calls import name_of

__all__ = ["Outline", "with_numbers"]

_COMPUTED_OTHERWISE = frozenset(("pow", "pow_", "__pow__", "__rpow__", "__ipow__", "float_power", "ldexp"))
"""Functions that compute in another way for some integers: squares are products."""


class Outline:
    """A recorded graph: ``family`` is what tells it from all graphs that differ in more than integers.

    ``numbers`` are the sizes and strides of its inputs, the first ``sizes`` of them, and the integers among the
    arguments of its calls, in order; ``firsts`` are the positions of the first number of each input.
    """

    def __init__(self, segment: Segment, outputs: list[Node]) -> None:
        self.numbers: list[int] = []
        self._names: list[str] = []
        self._tensors = 0
        self.firsts: list[int] = []
        looks = tuple(map(self._look, segment.looks))
        self.sizes = len(self.numbers)
        calls = tuple(map(self._call, segment.key))
        self.family = (calls, looks, segment.state, tuple(segment.numbers[node] for node in outputs))

    @property
    def fits_in_words(self) -> bool:
        """Whether integers of tracing may be these numbers."""
        return all(-sys.maxsize // 2 < number < sys.maxsize // 2 for number in self.numbers)

    def name(self, at: int) -> str:
        """What the integer at a position is."""
        return self._names[at]

    def _look(self, look: tuple[Any, ...]) -> Any:
        kind, dtype, device, shape, stride, *rest = look
        tensor = f"tensor {self._tensors}"
        self._tensors += 1
        self.firsts.append(len(self.numbers))
        self.numbers += [*shape, *stride]
        self._names += [f"{what} {at} of {tensor}" for what in ("size", "stride") for at in range(len(shape))]
        zeros = tuple(number == 0 for number in (*shape, *stride))
        return kind, dtype, device, zeros, *rest

    def _call(self, entry: tuple[Any, ...]) -> Any:
        if not has_holes(entry):
            return entry
        op, target, args, kwargs = entry
        without = self._without(args), self._without(kwargs)
        named = target if isinstance(target, str) else name_of(target)
        self._names += [f"an argument of {named}"] * (len(self.numbers) - len(self._names))
        return op, target, *without

    def _without(self, value: Any) -> Any:
        if type(value) is not tuple:
            return value
        if len(value) == 2 and value[0] is int:
            self.numbers.append(value[1])
            return int
        return tuple(map(self._without, value))


def has_holes(entry: tuple[Any, ...]) -> bool:
    """Whether integers in this part of a graph's key may be others in a graph of the same family."""
    if entry[0] not in ("call_function", "call_method"):
        return False  # which part of a result it is
    target = entry[1]
    return (target if isinstance(target, str) else name_of(target)) not in _COMPUTED_OTHERWISE


def with_numbers(segment: Segment, made: Graph, given: list[Any]) -> None:
    """Add to ``made`` a copy of a graph whose calls have the integers ``given`` in place of theirs, some are nodes."""
    copies, numbers = dict[Node, Node](), iter(given)
    entries = iter(segment.key)
    for node in segment.graph.nodes:
        copy = copies[node] = made.node_copy(node, copies.__getitem__)
        copy.meta = {"stack_trace": node.meta["stack_trace"]} if "stack_trace" in node.meta else {}
        if node.op in ("placeholder", "output") or not has_holes(next(entries)):
            continue
        copy.args = map_aggregate(copy.args, lambda value: next(numbers) if type(value) is int else value)
        copy.kwargs = map_aggregate(copy.kwargs, lambda value: next(numbers) if type(value) is int else value)
