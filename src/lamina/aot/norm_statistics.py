"""Running statistics of batch norms: written to within its kernels, of which autograd is told nothing.

So their versions do not rise in eager, and a backward that saved them is not refused for it.
"""

from __future__ import annotations

from torch.fx import GraphModule, Node

from lamina.base.source import operation_name

__all__ = ["kept_by_norms"]


def kept_by_norms(gm: GraphModule) -> frozenset[int]:
    """The inputs of a captured graph that nothing but batch norms use."""
    inputs = gm.graph.find_nodes(op="placeholder")
    return frozenset(place for place, node in enumerate(inputs) if node.users and all(map(_is_norm, node.users)))


def _is_norm(node: Node) -> bool:
    return node.op == "call_function" and operation_name(node.target) == "batch_norm"
