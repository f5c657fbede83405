"""A graph as what it has in common with all those that differ from it in integers, and these integers."""

from __future__ import annotations

import operator
import sys
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate

from lamina.base.captured import MODULES, OF_A_MODULE, UNSEEN_RESULTS
from lamina.capture.own.segment import Segment
from lamina.capture.own.torch_calls import constant, name_of

__all__ = ["Outline", "integers", "others", "with_numbers"]

_COMPUTED_OTHERWISE = frozenset(("pow", "pow_", "__pow__", "__rpow__", "__ipow__", "float_power", "ldexp"))
"""Functions that compute in another way for some integers: squares are products."""


_CARRIED = ("stack_trace", MODULES, UNSEEN_RESULTS, OF_A_MODULE)
_OF_TRUTHS = ("dtype", constant(torch.bool))
_GONE = object()


class Outline:
    """A recorded graph: ``family`` is what tells it from all graphs that differ in more than integers.

    ``numbers`` are the sizes and strides of its inputs, the first ``sizes`` of them, and the integers among the
    arguments of its calls, in order; ``firsts`` are the positions of the first number of each input, ``truths`` those
    of numbers that tensors of truth values are full of.
    """

    def __init__(self, segment: Segment, outputs: list[Node]) -> None:
        self.numbers: list[int] = []
        self._names: list[str] = []
        self._tensors = 0
        self.firsts: list[int] = []
        self.truths: list[int] = []
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
        given = self._without(args)
        if target is torch.full and len(args) == 3 and args[2] == (int, self.numbers[-1]) and _OF_TRUTHS in kwargs:
            self.truths.append(len(self.numbers) - 1)
        without = given, self._without(kwargs)
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


def integers(segment: Segment) -> list[int]:
    """The integers among the arguments of the calls of a graph, in order, as the objects that they were given as."""
    return _given(segment, True)


def others(segment: Segment) -> list[int]:
    """Those of calls that compute in another way for some integers, which are parts of the family."""
    return _given(segment, False)


def _given(segment: Segment, holes: bool) -> list[int]:
    """The integers among the arguments of the calls that have holes for them, or of the others."""
    found: list[int] = []

    def note(value: Any) -> Any:
        if type(value) is int:
            found.append(value)
        return value

    entries = iter(segment.key)
    for node in segment.graph.nodes:
        if node.op not in ("placeholder", "output") and has_holes(next(entries)) == holes:
            map_aggregate((node.args, node.kwargs), note)
    return found


def with_numbers(segment: Segment, made: Graph, given: list[Any]) -> dict[Node, Node]:
    """Add to ``made`` a copy of a graph whose calls have the integers ``given`` in place of theirs, some are nodes.

    Gives the copies of its nodes.
    """
    copies, numbers = dict[Node, Node](), iter(given)
    entries = iter(segment.key)
    for node in segment.graph.nodes:
        copy = copies[node] = made.node_copy(node, copies.__getitem__)
        copy.meta = {key: node.meta[key] for key in _CARRIED if key in node.meta}
        if node.op in ("placeholder", "output") or not has_holes(next(entries)):
            continue
        copy.args = map_aggregate(copy.args, lambda value: next(numbers) if type(value) is int else value)
        copy.kwargs = map_aggregate(copy.kwargs, lambda value: next(numbers) if type(value) is int else value)
        if node.target is operator.getitem:
            _index(copy, node.args[1])  # a call that only a part of the copy makes is ``within`` it
        elif node.target is torch.tensor:
            _fill(copy, node.args)
    return copies


def _index(copy: Node, index: Any) -> None:
    """Have calls choose what integers of an ``index`` choose that are inputs: indexing asks which numbers they are.

    An index that has tensors or lists stays as it is, and so does an integer right behind a new dimension, whose
    stride is that of what it was put before.
    """
    parts = index if type(index) is tuple else (index,)
    given: Any = copy.args[1]
    given = [*given] if type(index) is tuple else [given]
    if any(part is not None and part is not Ellipsis and type(part) not in (int, slice) for part in parts):
        return
    middle = next((at for at, part in enumerate(parts) if part is Ellipsis), len(parts))
    chosen: list[tuple[int, Node]] = []
    before = after = 0
    for at in [*range(middle), *range(len(parts) - 1, middle, -1)]:
        ahead = next((part for part in parts[:at][::-1] if part is not Ellipsis), Ellipsis)
        if type(parts[at]) is int and ahead is not None and isinstance(given[at], Node):
            chosen.append((before if at < middle else -1 - after, given[at]))
            given[at] = _GONE
        else:
            before += at < middle and parts[at] is not None
            after += at > middle and parts[at] is not None
    rest = tuple(part for part in given if part is not _GONE)
    tensor = copy.args[0]
    for place, (dimension, number) in enumerate(chosen):
        if not rest and place == len(chosen) - 1:
            copy.target, copy.args = torch.select, (tensor, dimension, number)
            return
        with copy.graph.inserting_before(copy):
            tensor = copy.graph.call_function(torch.select, (tensor, dimension, number))
            tensor.meta = {**copy.meta, "within": True}
    copy.args = (tensor, rest) if chosen else copy.args


def _fill(copy: Node, args: Any) -> None:
    """Have a tensor without dimensions filled with an integer that is an input: ``torch.tensor`` asks which it is."""
    number = copy.args[0]
    if type(args[0]) is int and isinstance(number, Node) and copy.kwargs.keys() <= {"dtype", "device"}:
        copy.target, copy.args = torch.full, ((), number)
        copy.kwargs = {**copy.kwargs, "dtype": copy.kwargs.get("dtype") or torch.int64}
