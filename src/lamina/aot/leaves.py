"""Leaves that a captured graph makes: views taken where gradients are off, and tensors that ask for gradients."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.aot import eager_reasons
from lamina.aot.torch_private import is_leaf
from lamina.base.captured import example, fakes, memory, tensors
from lamina.base.reasons import Reason
from lamina.base.source import operation_name, source_of

__all__ = ["leaf_made"]

_OF_A_TRANSFORM = "_wrap_for_grad"
"""Makes the leaf at which ``torch.func.grad`` and the like begin to differentiate; the graph does that itself."""


def leaf_made(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: a leaf of its own that gradients flow to, or None.

    A view of a tensor with a history that is taken where gradients are off requires a gradient and has no history.
    Traced for AOTAutograd it has that of its base, or none at all.
    """
    calls = [node for node in gm.graph.nodes if node.op in ("call_function", "call_method")]
    made = {node for node in calls if _is_leaf(node) and operation_name(node.target) != _OF_A_TRANSFORM}
    for node in made:
        if any(user.op == "output" or (user not in made and _requires_grad(user)) for user in node.users):
            return eager_reasons.LEAF_MADE(place=source_of(node))
    view = None if torch.is_grad_enabled() else _view_with_history(gm)
    return None if view is None else eager_reasons.VIEW_WITHOUT_HISTORY(place=source_of(view))


def _view_with_history(gm: GraphModule) -> Node | None:
    """A result that has a history and shares memory with an input or another result, and is no input.

    Such views are made again in the grad mode of the caller. Where that is off, they would be leaves.
    """
    returned = [node for node in gm.graph.output_node().all_input_nodes if fakes(node)]
    given = [node for node in gm.graph.nodes if node.op in ("placeholder", "get_attr")]
    inputs = {id(one) for node in given for one in fakes(node)}
    shared = Counter(memory(one) for node in {*returned, *given} for one in fakes(node))
    for node in returned:
        if any(one.requires_grad and id(one) not in inputs and shared[memory(one)] > 1 for one in fakes(node)):
            return node
    return None


def _is_leaf(node: Node) -> bool:
    value: Any = example(node)
    return isinstance(value, torch.Tensor) and value.requires_grad and is_leaf(value)


def _requires_grad(node: Node) -> bool:
    return any(one.requires_grad for one in tensors(node))
