"""Copies of FX graphs, whole or in part, in which other nodes stand for some or are written in their place."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

__all__ = ["Made", "Read", "Write", "add_calls", "copy_nodes", "copy_on_demand", "needed_by", "returning"]

Made = dict[Node, Any]
"""What nodes of one graph are in another that is being written: nodes, or constants."""

Write = Callable[[Graph, Made], Any]
"""Writes calls into a new graph and gives what holds the value; what became of earlier nodes is its second argument."""

Read = Callable[[Node], Any]
"""Gives what the copy of a node has in the place of one of its operands; may write it first."""

_NONE: Mapping[Node, Any] = MappingProxyType({})


def copy_nodes(
    graph: Graph,
    nodes: Iterable[Node],
    made: Made | None = None,
    *,
    stand_in: Mapping[Node, Node] = _NONE,
    writes: Mapping[Node, Write] = _NONE,
    reading: Mapping[Node, Read] = _NONE,
) -> Made:
    """Copy ``nodes``, each after its operands, with their ``meta`` to the end of ``graph``; what each has become.

    What ``made``, which is extended, has beforehand is not copied. An earlier node ``stand_in[node]`` stands for its
    node, and what ``writes[node]`` gives, which may say as well what other nodes are until their turn comes. The copy
    of a node has as operands what ``reading[node]`` gives, by default what they have become. Raises ``KeyError`` where
    an operand has become nothing.
    """
    made = {} if made is None else made
    given = frozenset(made)
    for node in nodes:
        if node in given:
            continue
        if node in stand_in:
            made[node] = made[stand_in[node]]
        elif node in writes:
            made[node] = writes[node](graph, made)
        else:
            made[node] = graph.node_copy(node, reading.get(node, made.__getitem__))
    return made


def copy_on_demand(graph: Graph, node: Node, made: Made, resolved: Callable[[Node], Node]) -> Any:
    """What ``node`` is in ``graph``: copied now, as are its operands before it, unless ``made`` has it.

    Of a node the one that it is ``resolved`` to is copied.
    """
    node = resolved(node)
    if node not in made:
        made[node] = graph.node_copy(node, lambda n: copy_on_demand(graph, n, made, resolved))
    return made[node]


def returning(
    gm: GraphModule,
    results: Sequence[Any],
    nodes: Iterable[Node] | None = None,
    stand_in: Mapping[Node, Node] = _NONE,
) -> Graph:
    """A copy of the graph of ``gm``, or of these ``nodes`` of it, that returns the tuple of ``results``, nodes of it.

    The ``meta`` of the output is that of the old one. An earlier node ``stand_in[node]`` stands for its node.
    """
    graph = Graph()
    copied = (n for n in (gm.graph.nodes if nodes is None else nodes) if n.op != "output")
    made = copy_nodes(graph, copied, stand_in=stand_in)
    graph.output(map_arg(tuple(results), made.__getitem__)).meta = dict(gm.graph.output_node().meta)
    return graph


def needed_by(roots: Iterable[Node], known: Container[Node] = ()) -> set[Node]:
    """``roots`` and all that they are computed from, up to what is ``known``."""
    needed = set(roots)
    stack = list(needed)
    while stack:
        for operand in stack.pop().all_input_nodes:
            if operand not in known and operand not in needed:
                needed.add(operand)
                stack.append(operand)
    return needed


def add_calls(graph: Graph, calls: Iterable[Node], made: Made, meta: Mapping[str, Any]) -> list[Node]:
    """Copy traced ``calls`` to where ``graph`` inserts, with ``meta`` and their own values; ``made`` is extended.

    Operands that ``made`` lacks are nodes of ``graph`` already.
    """
    copies = []
    for call in calls:
        copied = graph.node_copy(call, lambda n: made.get(n, n))
        copied.meta = {**meta, "val": call.meta["val"]}
        if "example_value" in meta:
            copied.meta["example_value"] = call.meta["val"]
        made[call] = copied
        copies.append(copied)
    return copies
