"""Looks ahead of a call that is recorded: what stands for its results, or why a graph cannot hold it."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, Node

from lamina.capture.own.fakes import OTHER_KIND, NotHeld, kind_of_look, look
from lamina.capture.own.nested import flat, frozen, mapped, tensors
from lamina.capture.own.regions import Regions
from lamina.capture.own.segment import Segment
from lamina.capture.own.torch_calls import in_place, name_of, target_of, writes_to_list
from lamina.capture.own.torch_private import autocast_states, cause_of_error, without_function_modes

__all__ = ["looked_ahead"]


def looked_ahead(segment: Segment, regions: Regions, func: Any, args: Any, kwargs: Any, one_graph: bool) -> Any:
    """Fake results of a call with fake operands; ``NotHeld``, with its cause, if a graph cannot hold it.

    With ``one_graph`` all is to be one graph, in which tensors may have any layout.
    """
    compute = partial(func, *args, **kwargs)
    operands = list({id(fake): fake for fake in flat((args, kwargs))}.values())
    key: Any = object()
    if not segment.records and not in_place(func) and func.__class__.__name__ != "method-wrapper":
        numbers = {id(fake): place for place, fake in enumerate(operands)}
        with contextlib.suppress(RuntimeError):  # another view of it was written to: nobody can ask for its history
            looks = tuple(look(fake) for fake in operands)
            given = frozen(args, numbers), frozen(kwargs, numbers)
            key = (func, torch.is_grad_enabled(), segment.state, looks, given)
    place = segment.uses[key]
    segment.uses[key] += 1
    known = segment.stand_ins.computed
    if name_of(func) == "__setitem__":
        compute = partial(_set_item, *args)
    elif writes_to_list(func):
        compute = partial(_write_to_list, func, args, kwargs)
    try:
        found = segment.stand_ins.result(key, compute, operands, place)
    except Exception as error:
        if isinstance(error, NotHeld):
            raise
        # Eager says what is wrong, or computes what depends on values.
        raise NotHeld(cause_of_error(error)) from error
    others = segment.stand_ins.computed > known and not writes_to_list(func)
    if others and _is_other(regions, func, args, kwargs, operands, found, one_graph):
        segment.stand_ins.refuse(key)
        raise NotHeld(OTHER_KIND)  # the program may ask what eager gives
    return found


def _is_other(
    regions: Regions, func: Any, args: Any, kwargs: Any, operands: list[Any], found: Any, one_graph: bool
) -> bool:
    """Whether a call gives tensors of another type, rank or layout than those ``found``; see ``looked_ahead``."""
    if not operands:
        return False
    numbers = {id(fake): place for place, fake in enumerate(operands)}
    modes = torch.is_grad_enabled(), autocast_states()
    try:
        kinds = tuple(map(kind_of_look, operands))
        kind = (func, frozen(args, numbers), frozen(kwargs, numbers), kinds, modes)
        with without_function_modes():
            return regions.is_other(kind, partial(_alone, func, args, kwargs, operands, found), not one_graph)
    except RuntimeError:  # as above: nobody can ask for the history of an operand
        return False


def _alone(func: Any, args: Any, kwargs: Any, operands: list[Any], found: Any) -> Node:
    """A call as the only node of a graph."""
    graph = Graph()
    nodes = {id(fake): graph.placeholder(f"l_{place}") for place, fake in enumerate(operands)}
    for fake in operands:
        nodes[id(fake)].meta["example_value"] = fake
    op, target = target_of(func)
    given = tensors(lambda fake: nodes[id(fake)])
    node = graph.create_node(op, target, mapped(args, given), mapped(kwargs, given))
    node.meta["example_value"] = found
    return node


def _set_item(tensor: torch.Tensor, *given: Any) -> torch.Tensor:
    """``tensor``, of which a part is set."""
    tensor.__setitem__(*given)
    return tensor


def _write_to_list(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors of a list, to which a function writes."""
    func(*args, **kwargs)
    return [*args[0]]
