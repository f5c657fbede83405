"""Sizes that only data tell and that tracing took to be what makes a call fit: the captured graph asserts them."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.base.source import source_of
from lamina.base.symbolic.torch_private import is_constant

__all__ = ["assumed_size"]

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
