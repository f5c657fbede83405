"""Sizes that only data tell and of which tracing took too much for granted: the captured graph asserts it."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.base.source import operation_name, source_of
from lamina.base.symbolic.torch_private import depends_on_data, is_constant, is_true

__all__ = ["assumed_equal", "assumed_size", "assumed_step", "wider_mask"]

_READS = ("item", "tolist", torch.ops.aten._local_scalar_dense.default)
_ASSERT = torch.ops.aten._assert_scalar.default


def assumed_size(gm: GraphModule, of_tensors: bool = False) -> str:
    """Why the captured graph is not the program: an assertion on a size of a run, true when traced again, or "".

    A broadcast of a size that only data tell with a fixed one makes the first equal to the second for all of the graph.
    The captured graph asserts so of the size there is, while the program broadcasts a size of 1 to any other; traced
    again it is two equal numbers. With ``of_tensors`` only sizes of tensors count: what is asserted of a number may be
    what the program itself checks.
    """
    for node in gm.graph.find_nodes(op="call_function", target=_ASSERT):
        condition: Any = node.args[0]
        if not isinstance(condition, Node) or not is_constant(condition.meta.get("example_value")):
            continue
        maker = _maker(condition)
        if of_tensors and not isinstance(maker.meta.get("example_value"), torch.Tensor):
            continue
        return f"{source_of(maker)} has a size that only data tell and that is taken to fit another"
    return ""


def assumed_equal(gm: GraphModule) -> str:
    """Why the captured graph is not the program: an assertion that two numbers are equal that data alone tell, or "".

    A broadcast of two such sizes makes the captured graph assert so, while one of them may be 1.
    """
    for node in gm.graph.find_nodes(op="call_function", target=_ASSERT):
        condition: Any = node.args[0]
        if not isinstance(condition, Node) or condition.target is not operator.eq:
            continue
        sides = [n.meta.get("example_value") for n in condition.all_input_nodes]
        if len(sides) == 2 and all(isinstance(side, torch.SymInt) and depends_on_data(side) for side in sides):
            return f"{source_of(_maker(condition))} has a size that only data tell and that is taken to fit another"
    return ""


def assumed_step(gm: GraphModule) -> str:
    """Why the captured graph is not the program: it asserts that a step that data alone tell is positive, or "".

    Where it is not, eager refuses the slice by another class of error.
    """
    for node in gm.graph.nodes:
        if node.target not in (operator.getitem, operator.setitem) or len(node.args) < 2:
            continue
        places = node.args[1] if isinstance(node.args[1], tuple | list) else (node.args[1],)
        steps = [place.step for place in places if isinstance(place, slice) and isinstance(place.step, Node)]
        values = [step.meta.get("example_value") for step in steps]
        if any(isinstance(value, torch.SymInt) and depends_on_data(value) for value in values):
            return f"{source_of(node)} has a step that only data tell and that is taken to be positive"
    return ""


def wider_mask(gm: GraphModule) -> str:
    """Why the captured graph is not the program: it asserts that a mask selects no more than a tensor has, or "".

    The mask may have more elements than the tensor, which then is broadcast.
    """
    for node in gm.graph.nodes:
        selects = node.op.startswith("call_") and operation_name(node.target) == "masked_select"
        if selects and not _has_all_places(node):
            return f"{source_of(node)} has a mask of another shape, and may select more than the tensor holds"
    return ""


def _has_all_places(node: Node) -> bool:
    """Whether what a mask selects from is known to have all elements that the mask has."""
    values = [n.meta.get("example_value") for n in node.all_input_nodes[:2]]
    shapes = [list(value.shape) for value in values if isinstance(value, torch.Tensor)]
    if len(shapes) < 2:
        return len(values) < 2
    given, mask = shapes
    wide = [1] * (len(mask) - len(given)) + given
    return all(is_true(m == n) or is_true(m == 1) for m, n in zip(reversed(mask), reversed(wide), strict=False))


def _maker(condition: Node) -> Node:
    """The call that made the tensor whose size, or else the number, that a condition is on."""
    node = condition
    while node.all_input_nodes and _is_number(node):
        node = node.all_input_nodes[0]
    return node


def _is_number(node: Node) -> bool:
    """Whether a call gives a number or a condition, and not one that it reads from a tensor's elements."""
    operands = [n.meta.get("example_value") for n in node.all_input_nodes]
    return not isinstance(node.meta.get("example_value"), torch.Tensor) and not (
        node.target in _READS and isinstance(operands[0], torch.Tensor)
    )
