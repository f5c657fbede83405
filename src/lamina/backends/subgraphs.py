"""A graph taken apart: what a backend takes, what it leaves to another one, and the writes to inputs at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

from lamina.backends.reasons import REFUSED, SUPPORTED
from lamina.base.decision import Decision
from lamina.base.fx.copying import copy_nodes
from lamina.base.torch_private import HigherOrderOperator

__all__ = ["Subgraph", "Subgraphs", "split", "without_writes"]

_COPY = torch.ops.aten.copy_.default
_MOST_NAMED = 6
"""Operations that a decision about a subgraph names; the others are counted."""


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A piece of a graph that one backend runs. ``taken`` tells the backend asked for from its fallback."""

    name: str
    gm: GraphModule
    taken: bool


@dataclass(frozen=True, slots=True)
class Subgraphs:
    """``gm`` with its ``subgraphs`` as submodules; ``decisions`` say of each part, and of each reason, why."""

    gm: GraphModule
    subgraphs: tuple[Subgraph, ...]
    decisions: tuple[Decision, ...]

    def text(self) -> str:
        """The outer graph and each part as readable Python."""
        graphs = [self.gm, *(subgraph.gm for subgraph in self.subgraphs)]
        return "\n".join(str(gm.print_readable(print_output=False)) for gm in graphs)


def without_writes(gm: GraphModule) -> tuple[GraphModule, tuple[tuple[int, int], ...]]:
    """``gm`` without its trailing writes to inputs, and those writes as (input, output that holds the new value).

    The new values become outputs after the graph's own. A graph without writes is returned as it is.
    """
    copies = [node for node in gm.graph.nodes if node.target is _COPY]
    if not copies:
        return gm, ()
    graph = Graph()
    nodes = copy_nodes(graph, (n for n in gm.graph.nodes if n.op != "output" and n.target is not _COPY))
    (output,) = gm.graph.find_nodes(op="output")
    results = list(output.args[0])
    placeholders = gm.graph.find_nodes(op="placeholder")
    writes = []
    for number, copy in enumerate(copies):
        destination, source = copy.args[:2]
        writes.append((placeholders.index(destination), len(results) + number))
        nodes[copy] = nodes[source]
    values = [nodes[r] if isinstance(r, Node) else r for r in (*results, *copies)]
    graph.output(tuple(values))
    functional = GraphModule(gm, graph)
    functional.meta.update(gm.meta)
    return functional, tuple(writes)


class _Support(OperatorSupportBase):
    """Nodes of some names, as torch's partitioner asks for them: taking parts out makes new nodes of the same names."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        del submodules
        return node.name in self.names


def split(gm: GraphModule, name: str, refuses: Callable[[Node], str]) -> Subgraphs:
    """``gm`` in parts that hold calls ``refuses`` has nothing against ("") and parts that hold the others.

    Arithmetic on sizes, and control flow with graphs of its own, stay in the outer graph. ``gm`` itself is not changed.
    """
    gm = _copied(gm)
    reasons = {node: _reason(node, refuses) for node in gm.graph.nodes if node.op == "call_function"}
    for node in list(reasons):  # what takes a result out of a tuple goes where the tuple is made
        if _takes_out(node):
            reasons[node] = reasons.get(node.args[0], "")
    outside = {node for node in reasons if _stays_outside(node)}
    inner = frozenset(node.name for node, reason in reasons.items() if not reason and node not in outside)
    refused = {node: reason for node, reason in reasons.items() if reason and node not in outside}
    counted = Counter(reason for node, reason in refused.items() if not _takes_out(node))
    decisions = [
        Decision(
            "backend", _named([n for n in refused if refused[n] == why]), False, REFUSED(why=why), (("calls", count),)
        )
        for why, count in counted.most_common()
    ]
    subgraphs: list[Subgraph] = []
    rest = frozenset(node.name for node in refused)
    for chosen, prefix, taken in ((inner, f"{name}_part", True), (rest, f"{name}_rest", False)):
        partitioner = CapabilityBasedPartitioner(gm, _Support(chosen), allows_single_node_partition=True)
        pieces = [piece.nodes for piece in partitioner.propose_partitions()]
        sizes = [sum(1 for node in piece if not _takes_out(node)) for piece in pieces]
        names = [_named(piece) for piece in pieces]
        gm = fuse_by_partitions(gm, pieces, prefix=prefix, always_return_tuple=True)
        for number, (size, ops) in enumerate(zip(sizes, names, strict=True)):
            subgraph = Subgraph(f"{prefix}{number}", getattr(gm, f"{prefix}{number}"), taken)
            subgraphs.append(subgraph)
            if taken:
                decisions.append(Decision("backend", (subgraph.name, *ops), True, SUPPORTED(), (("calls", size),)))
    gm.recompile()
    return Subgraphs(gm, tuple(subgraphs), tuple(decisions))


def _copied(gm: GraphModule) -> GraphModule:
    graph = Graph()
    copy_nodes(graph, gm.graph.nodes)
    return GraphModule(gm, graph)


def _reason(node: Node, refuses: Callable[[Node], str]) -> str:
    return "" if _stays_outside(node) or _takes_out(node) else refuses(node)


def _takes_out(node: Node) -> bool:
    source = node.args[0] if node.op == "call_function" and node.args else None
    return isinstance(source, Node) and isinstance(source.meta.get("val"), (tuple, list))


def _stays_outside(node: Node) -> bool:
    if isinstance(node.target, HigherOrderOperator):
        return True
    source = node.args[0] if node.args else None
    if _takes_out(node) and isinstance(source, Node) and isinstance(source.target, HigherOrderOperator):
        return True
    value = node.meta.get("val")
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def _named(nodes: Sequence[Node] | Mapping[Node, Any]) -> tuple[str, ...]:
    """The operations of some calls, the first few by name."""
    names = list(dict.fromkeys(str(node.target) for node in nodes if not _takes_out(node)))
    return (*names[:_MOST_NAMED], f"and {len(names) - _MOST_NAMED} more") if len(names) > _MOST_NAMED else tuple(names)
