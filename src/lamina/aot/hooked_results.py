"""Results whose gradient a hook changes that the function itself registered.

Eager calls the hooks of a tensor in the order in which they were registered. A hook that a graph registers is part of
its gradient, which the autograd engine computes after the hooks that the caller registered on the result.
"""

from __future__ import annotations

from torch.fx import GraphModule, Node

from lamina.aot import eager_reasons
from lamina.base.reasons import Reason
from lamina.base.source import operation_name, source_of

__all__ = ["hooked_result"]


def hooked_result(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: it returns a tensor with a hook of its own, or None."""
    results = gm.graph.output_node().all_input_nodes
    hooked = next((node for node in results if _registers_hook(node)), None)
    return None if hooked is None else eager_reasons.HOOKED_RESULT(place=source_of(hooked))


def _registers_hook(node: Node) -> bool:
    return node.op == "call_function" and operation_name(node.target) == "register_hook"
