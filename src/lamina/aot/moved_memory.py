"""Inputs that get another memory, as by ``x.data, y.data = y.data, x.data``, beside views of what they had.

AOTAutograd finds a view of an input in the memory that the input has at the end.
"""

from __future__ import annotations

from torch import Tensor
from torch.fx import GraphModule, Node

from lamina.base.captured import example
from lamina.base.source import source_of

__all__ = ["moved_memory"]


def moved_memory(gm: GraphModule) -> str:
    """Why the captured graph is eager's to run: an input gets memory of one that gets another; "" if none does.

    Or it gets another memory after what is returned as a view of it, or as its data, was made.
    """
    returned = set(gm.graph.output_node().all_input_nodes)
    moves = [node for node in gm.graph.nodes if node.op.startswith("call") and _name(node) == "set_"]
    moved = {_owner(node.args[0]) for node in moves}
    seen: set[Node] = set()
    for node in gm.graph.nodes if moves else ():
        if node in moves:
            if any(_owner(given) in moved for given in node.args[1:2] if isinstance(given, Node)):
                return f"{source_of(node)} gives an input the memory of one that gets another memory"
            if any(_owner(one) is _owner(node.args[0]) for one in seen):
                return f"{source_of(node)} gives an input another memory than a result has that was made of it"
        elif node.op != "placeholder" and node in returned:
            seen.add(node)
    return ""


def _name(node: Node) -> str:
    return str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))


def _owner(node: object) -> Node | None:
    """The input, or the call that made the memory, that a tensor of the graph is a view or the data of."""
    while isinstance(node, Node) and node.all_input_nodes and _looks(node):
        node = node.all_input_nodes[0]
    return node if isinstance(node, Node) else None


def _looks(node: Node) -> bool:
    value = example(node)
    return isinstance(value, Tensor) and (value._is_view() or _name(node) in ("_get_data_attr", "detach"))
