"""Sizes that only data tell and that tracing took to be what makes a call fit: the captured graph asserts them."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.aot.captured import example
from lamina.base.source import source_of
from lamina.base.symbolic.torch_private import is_constant

__all__ = ["assumed_size"]

_ASSERT = torch.ops.aten._assert_scalar.default


def assumed_size(gm: GraphModule) -> str:
    """Why the captured graph is eager's to run: an assertion on a size of a run, true when traced again, or "".

    A broadcast of a size that only data tell with a fixed one makes the first equal to the second for all of the graph.
    The captured graph asserts so of the size there is; traced again it is two equal numbers.
    """
    for node in gm.graph.find_nodes(op="call_function", target=_ASSERT):
        condition: Any = node.args[0]
        if not isinstance(condition, Node) or not is_constant(example(condition)):
            continue
        return f"{_maker(condition)} has a size that only data tell and that is taken to fit another"
    return ""


def _maker(condition: Node) -> str:
    """The call that made the tensor, or else the number, that a condition is on."""
    node = condition
    while node.all_input_nodes and not isinstance(example(node), torch.Tensor):
        node = node.all_input_nodes[0]
    return source_of(node)
