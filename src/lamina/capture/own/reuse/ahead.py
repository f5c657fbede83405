"""What small tensors from outside hold after writes of a graph in the making, told before anything of a call runs.

An optimizer counts its steps in tensors and asks each for its number, which would end the graph at each parameter.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.base.devices import kind_of
from lamina.base.drawing import may_draw
from lamina.base.lowering import is_programs_own
from lamina.base.torch_private import storage_of
from lamina.capture.own.frame import MISSING, MOST_KEPT
from lamina.capture.own.nested import frozen
from lamina.capture.own.reuse.facts import Place
from lamina.capture.own.reuse.values import part_of
from lamina.capture.own.torch_calls import name_of
from lamina.capture.own.torch_private import unseen, without_function_modes
from lamina.capture.own.trials import SMALL

__all__ = ["Ahead", "Apart", "note_apart", "number_ahead"]

_KINDS = (torch.Tensor, torch.nn.Parameter)


class Ahead:
    """Computes what tensors of one element hold after calls that write to them, and writes to copies of them only.

    It is asked for each parameter of an optimizer, which count alike: what it told last is told again of equal numbers.
    """

    def __init__(self, calls: Callable[..., Any]) -> None:
        self.calls, self.__name__ = calls, "items"
        self.told: tuple[Any, tuple[Any, ...]] = (None, ())

    def __call__(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        with torch.no_grad():
            numbers = tuple([tensor.item() for tensor in tensors])
            looks = [(tensor.dtype, tensor.shape) for tensor in tensors]
            asked = (numbers, looks, torch.get_default_dtype(), torch.is_autocast_enabled("cpu"))
            before, found = self.told
            if before != asked or 0 in numbers:  # of a zero it is not told which one
                found = tuple([tensor.item() for tensor in self.calls(*[tensor.clone() for tensor in tensors])])
                self.told = asked, found
            return found


class Apart:
    """Whether the first ``count`` of some tensors have no memory in common with each other, nor with the others."""

    def __init__(self, count: int) -> None:
        self.count, self.__name__ = count, "memories_apart"

    def __call__(self, *tensors: torch.Tensor) -> bool:
        memories = [*map(storage_of, tensors)]
        own = {*memories[: self.count]}
        return len(own) == self.count and own.isdisjoint(memories[self.count :])


def number_ahead(trace: Any, segment: Any, tensor: Any, known: dict[Any, Ahead]) -> Any:
    """``tensor.item()`` as a number that is a place; ``MISSING`` where it has to be computed first.

    ``known`` keeps what was made for the calls of other graphs.
    """
    if trace.ended is not None or not _is_small(trace, tensor):
        return MISSING
    node = None if segment is None else segment.input_nodes.get(id(tensor))
    calls, inputs = ([], [tensor]) if node is None else _calls_for(trace, segment, node)
    if inputs is None or (not calls and trace.learning.spoils is None):
        return MISSING
    if not _is_only_theirs(trace, segment, inputs):
        return MISSING
    numbers = {} if segment is None else {segment.input_nodes.get(id(one)): at for at, one in enumerate(inputs)}
    key = _key(calls, dict(numbers), len(inputs))
    if key not in known:
        known[key] = Ahead(_function(calls, numbers, len(inputs)))
    with without_function_modes():
        found = known[key](*inputs)
    if any(type(number) is not float or not number for number in found):
        return MISSING  # of small integers and zeros equal ones are not always one
    places = [trace.place_of(one) for one in inputs]
    trace.learning.ahead.update((place.number, (place, one)) for place, one in zip(places, inputs, strict=True))
    together = trace.facts.place("computed", None, (known[key], *places))
    at = next(at for at, one in enumerate(inputs) if one is tensor)
    return _shared(trace, found[at], trace.facts.place("computed", None, (part_of, together, at)))


def _shared(trace: Any, number: float, place: Place) -> float:
    """A number at a place; the one before it that is equal, which is a fact: optimizers count alike for all parameters.

    So what Python makes of them is computed once, and a graph has it as one input.
    """
    counted = trace.learning.counted
    if number not in counted:
        counted[number] = place
        return trace.learning.vary(number, place)  # type: ignore[no-any-return]
    if counted[number] is not place:
        trace.note("type", (place,), type(number))
        equal = trace.facts.place("computed", None, (operator.eq, place, counted[number]))
        trace.note("constant", (equal,), True)
    return trace.learning.vary(number, counted[number])  # type: ignore[no-any-return]


def _is_small(trace: Any, tensor: Any) -> bool:
    """Whether a tensor is there when the call begins, holds what it held then, and has one element."""
    if type(tensor) not in _KINDS or trace.place_of(tensor) is None or id(tensor) in trace.learning.overwritten:
        return False
    with unseen():
        return tensor.numel() == 1 and kind_of(tensor).host and not tensor.requires_grad


def _is_only_theirs(trace: Any, segment: Any, inputs: list[torch.Tensor]) -> bool:
    """Whether nothing that the call has written to so far lies in the memory of ``inputs``, but for these."""
    written = [] if segment is None else [segment.inputs[at] for at in segment.written()]
    mine = {*map(id, inputs)}
    others = [one for one in (*written, *trace.learning.overwritten.values()) if id(one) not in mine]
    with unseen():
        return Apart(len(inputs))(*inputs, *others)


def _calls_for(trace: Any, segment: Any, wanted: Node) -> tuple[list[Node], list[torch.Tensor] | None]:
    """The calls of a graph that an input's value depends on, and their inputs; None if that is not known."""
    if segment.writes_anywhere:
        return [], None
    needed, calls = {wanted}, []
    for node in reversed(segment.graph.nodes):
        targets = segment.trials.written.get(node, ())
        if node.op == "placeholder" or (node not in needed and needed.isdisjoint(targets)):
            continue
        if node.op not in ("call_function", "call_method") or may_draw(_name(node)) or is_programs_own(node.target):
            return [], None
        calls.append(node)
        needed.update(node.all_input_nodes, targets)
    inputs = [one for one in segment.inputs if segment.input_nodes[id(one)] in needed]
    made = [node.meta.get("example_value") for node in calls]
    if len(inputs) > MOST_KEPT or not all(_is_small(trace, one) for one in inputs):
        return [], None
    if any(isinstance(one, torch.Tensor) and one.numel() > SMALL for one in made):
        return [], None
    return calls[::-1], inputs


def _name(node: Node) -> str:
    return node.target if isinstance(node.target, str) else name_of(node.target)


def _key(calls: list[Node], numbers: dict[Any, int], count: int) -> Any:
    """What tells the calls from others."""
    key = []
    for at, node in enumerate(calls):
        key.append((node.op, node.target, frozen(node.args, numbers), frozen(node.kwargs, numbers)))
        numbers[node] = count + at
    return count, *key


def _function(calls: list[Node], numbers: dict[Any, int], count: int) -> Callable[..., Any]:
    """The calls as a function of their inputs, which gives these."""
    graph = Graph()
    inputs = [graph.placeholder(f"l_{at}") for at in range(count)]
    made: dict[Node, Node] = {node: inputs[at] for node, at in numbers.items() if node is not None}
    for node in calls:
        made[node] = graph.node_copy(node, made.__getitem__)
    graph.output(tuple(inputs))
    run: Callable[..., Any] = GraphModule(torch.nn.Module(), graph).forward
    return run


def note_apart(trace: Any) -> None:
    """Note that what numbers were told of ahead has no memory in common with what the call writes to."""
    ahead, written = trace.learning.ahead, trace.learning.overwritten
    if not ahead or trace.ended is not None:
        return
    first = [*ahead.values()]
    others: Iterable[Any] = [(trace.place_of(one), one) for one in written.values()]
    rest = [(place, one) for place, one in others if place is None or place.number not in ahead]
    asked = [*first, *((place, one) for place, one in rest if place is not None)]
    whole = Apart(len(first))
    with unseen():
        apart = whole(*(one for _, one in first), *(one for _, one in rest))
    if not apart:
        trace.end("a number is asked of memory that is written to in two ways")
        return
    place = trace.facts.place("computed", None, (whole, *(place for place, _ in asked)))
    trace.note("constant", (place,), True)
