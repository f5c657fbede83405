"""The one way a pass changes a graph: some nodes stand for others, and what is then dead goes."""

from __future__ import annotations

from torch.fx import Graph, GraphModule, Node

from lamina.rewrite.torch_private import graph_module

__all__ = ["Substitution", "dead_nodes", "rebuild"]

Substitution = dict[Node, Node]
"""Node to the earlier node that stands for it; the earlier node is never itself a key."""


def dead_nodes(graph: Graph, stand_in: Substitution) -> set[Node]:
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
    dead = dead_nodes(gm.graph, stand_in)
    if not stand_in and not dead:
        return gm
    graph = Graph()
    made: dict[Node, Node] = {}
    for node in gm.graph.nodes:
        if node in dead:
            continue
        other = stand_in.get(node)
        made[node] = made[other] if other is not None else graph.node_copy(node, made.__getitem__)
    return graph_module(gm, graph)
