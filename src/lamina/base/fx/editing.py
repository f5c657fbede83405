"""The ways a pass changes a graph: nodes stand for others, in place or in a new graph, or are written anew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from lamina.base.fx.copying import Write, copy_nodes
from lamina.base.fx.torch_private import graph_module

__all__ = [
    *("Substitution", "call_for", "erase_dead", "rebuild", "replace_node", "substitute", "used_once"),
    "written_anew",
]

Substitution = dict[Node, Node]
"""Node to the earlier node that stands for it; the earlier node is never itself a key."""


def _dead_nodes(graph: Graph, stand_in: Substitution) -> set[Node]:
    """Calls that nothing with an effect and no output needs, once ``stand_in`` is applied."""
    live: set[Node] = set()
    for node in reversed(graph.nodes):
        if node in stand_in:
            continue
        if node in live or node.op in ("placeholder", "output") or node.is_impure():
            live.add(node)
            live.update(stand_in.get(operand, operand) for operand in node.all_input_nodes)
    return {node for node in graph.nodes if node not in live and node not in stand_in}


def rebuild(gm: GraphModule, stand_in: Substitution) -> GraphModule:
    """A new module with ``stand_in`` applied and dead nodes left out; ``gm`` itself when nothing changes."""
    dead = _dead_nodes(gm.graph, stand_in)
    if not stand_in and not dead:
        return gm
    graph = Graph()
    live = (node for node in gm.graph.nodes if node not in dead and stand_in.get(node) not in dead)
    copy_nodes(graph, live, stand_in=stand_in)
    return graph_module(gm, graph)


def substitute(gm: GraphModule, stand_in: Substitution) -> GraphModule:
    """The graph of ``gm``, changed in place, in a new module: each node's users read what stands for it."""
    if not stand_in:
        return gm
    for node, other in stand_in.items():
        node.replace_all_uses_with(other)
    return erase_dead(gm)


def replace_node(node: Node, new: Node) -> None:
    """Let the users of ``node`` read ``new``, and erase it."""
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)


def erase_dead(gm: GraphModule) -> GraphModule:
    """The graph of ``gm``, changed in place, in a new module without dead calls; ``gm`` itself if there are none."""
    before = len(gm.graph.nodes)
    for node in reversed(gm.graph.nodes):  # users go before what they use
        if not node.users and node.op not in ("placeholder", "output") and not node.is_impure():
            gm.graph.erase_node(node)
    return gm if len(gm.graph.nodes) == before else graph_module(gm, gm.graph)


def written_anew(gm: GraphModule, writes: Mapping[Node, Write]) -> GraphModule:
    """A new module in which each of these nodes is what its function writes; ``gm`` itself if there are none."""
    if not writes:
        return gm
    graph = Graph()
    copy_nodes(graph, gm.graph.nodes, writes=writes)
    graph.eliminate_dead_code()
    return graph_module(gm, graph)


def used_once(node: Any, returned: Collection[Node]) -> bool:
    """Whether a call's value is needed in one place, and is none of those ``returned``."""
    return isinstance(node, Node) and node.op == "call_function" and len(node.users) == 1 and node not in returned


def call_for(graph: Graph, node: Node, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
    """A call on nodes of ``graph`` in the place of ``node``, whose origin it has, with its own fake value."""
    new = graph.call_function(target, args, kwargs)
    values = map_arg(args, lambda operand: operand.meta["val"])
    new.meta = {**node.meta, "val": target(*values, **kwargs)}
    return new
