"""Inputs that get another memory, as by ``x.data, y.data = y.data, x.data``, beside views of what they had.

AOTAutograd finds a view of an input in the memory that the input has at the end.
"""

from __future__ import annotations

from torch.fx import GraphModule, Node

from lamina.aot import eager_reasons
from lamina.base.captured import example, memory, tensors
from lamina.base.reasons import Reason
from lamina.base.source import source_of
from lamina.base.torch_private import is_view

__all__ = ["moved_memory"]


def moved_memory(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: an input gets memory of one that gets another; None if none does.

    Or a result lies in memory that an input gets, or had before: what it is a view of, whether it may be written to and
    with which others it has a version are then not what its fake tensor says.
    """
    moves = [node for node in gm.graph.nodes if node.op.startswith("call") and _name(node) == "set_"]
    moved = {_owner(node.args[0]) for node in moves}
    places: set[object] = set()
    for node in moves:
        given = [one for one in node.args[1:2] if isinstance(one, Node)]
        if any(_owner(one) in moved for one in given):
            return eager_reasons.MOVED_MEMORY(place=source_of(node))
        places.update(place for one in (node.args[0], *given) for place in _places(one))
    for node in gm.graph.output_node().all_input_nodes if moves else ():
        if not places.isdisjoint(_places(node)):
            return eager_reasons.RETURNED_MOVED_MEMORY(place=source_of(node))
    return None


def _places(node: object) -> list[object]:
    """What tells the memory that a tensor of the graph lies in, or lay in when it was made, from that of others."""
    where = memory(example(node))
    return [_owner(node), *(() if where is None else (where,))]


def _name(node: Node) -> str:
    return str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))


def _owner(node: object) -> Node | None:
    """The input, or the call that made the memory, that a tensor of the graph is a view or the data of."""
    while isinstance(node, Node) and node.all_input_nodes and _looks(node):
        node = node.all_input_nodes[0]
    return node if isinstance(node, Node) else None


def _looks(node: Node) -> bool:
    """Whether a call gives its first operand's memory: a view, several of them, its data, or parts of these."""
    found = tensors(node)
    return bool(found) and (is_view(found[0]) or _name(node) in ("_get_data_attr", "detach"))
