"""Running statistics of batch norms: written to within its kernels, of which autograd is told nothing.

So their versions do not rise in eager, and a backward that saved them is not refused for it.
"""

from __future__ import annotations

from torch.fx import GraphModule, Node

from lamina.base.aliasing import tensors_written
from lamina.base.batch_norms import arguments_of_norm, is_norm

__all__ = ["kept_by_norms", "unread"]


def kept_by_norms(gm: GraphModule) -> frozenset[int]:
    """The inputs of a captured graph that nothing but batch norms use."""
    inputs = gm.graph.find_nodes(op="placeholder")
    return frozenset(place for place, node in enumerate(inputs) if node.users and all(map(is_norm, node.users)))


def unread(gm: GraphModule) -> frozenset[int]:
    """The inputs of a captured graph that it writes to without reading them: running statistics, and their counts.

    A batch norm in training computes with the statistics of its operand.
    """
    inputs = gm.graph.find_nodes(op="placeholder")
    written = enumerate(inputs)
    return frozenset(i for i, node in written if node.users and all(_only_writes(user, node) for user in node.users))


def _only_writes(call: Node, node: Node) -> bool:
    if is_norm(call):
        given = arguments_of_norm(call)
        places = {name for name, value in given.items() if value is node}
        return given.get("training") is True and places <= {"running_mean", "running_var"}
    others = [n for n in call.all_input_nodes if n is not node]
    return not call.users and not others and tensors_written(call) == [node]
