"""Regions marked to be compiled once, with ``torch.compiler.nested_compile_region``, in the place of their calls.

Capture gives each such call as ``invoke_subgraph`` of a graph that all alike calls share. What is traced once here is
each distinct call anyway, and kernels that are equal are built once, so a region of its own would only part what can be
fused. The graph as captured cannot be run where gradients are on, either: torch runs it within its own tracing only.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from lamina.base.decision import Decision
from lamina.base.fx.torch_private import graph_module
from lamina.base.torch_private import fresh_symbols_dropped
from lamina.record import Record
from lamina.rewrite import reasons
from lamina.rewrite.torch_private import INVOKE_SUBGRAPH, fake_mode_of, has_fresh_symbols

__all__ = ["Inlined", "inlined", "with_inlined"]


@dataclass(frozen=True, slots=True)
class Inlined:
    """A captured graph without calls of marked regions: ``calls`` were inlined, ``kept`` are left and stay calls."""

    gm: GraphModule
    calls: int
    kept: tuple[str, ...]


def inlined(gm: GraphModule) -> Inlined | None:
    """``gm`` with the bodies of marked regions in the place of their calls; None where it has none.

    Each call gets values of its own: the bodies hold those of the first of several alike.
    """
    if not gm.graph.find_nodes(op="call_function", target=INVOKE_SUBGRAPH):
        return None
    writer = _Writer(gm)
    recording = torch.is_grad_enabled()
    try:
        writer.copy(gm, None)
    finally:
        torch.set_grad_enabled(recording)  # a body may switch it, which its values depend on
    for node in reversed(writer.graph.find_nodes(op="get_attr")):
        if not node.users and isinstance(getattr(gm, str(node.target), None), torch.nn.Module):
            writer.graph.erase_node(node)
    writer.graph.lint()
    return Inlined(graph_module(gm, writer.graph), writer.calls, tuple(writer.kept))


class _Writer:
    def __init__(self, gm: GraphModule) -> None:
        self.gm, self.graph = gm, Graph()
        self.inputs = [n.meta.get("example_value") for n in gm.graph.find_nodes(op="placeholder")]
        self.calls = 0
        self.kept: list[str] = []

    def copy(self, gm: GraphModule, operands: Sequence[Any] | None) -> Any:
        """Write the nodes of ``gm``, which gets ``operands`` if it is a body; what it returns, in the new graph."""
        made: dict[Node, Any] = {}
        given = iter(operands or ())
        for node in gm.graph.nodes:
            if node.op == "placeholder" and operands is not None:
                made[node] = next(given)
            elif node.op == "output" and operands is not None:
                return map_arg(node.args[0], made.__getitem__)
            elif node.target is INVOKE_SUBGRAPH:
                made[node] = self._body(gm, node, made)
            elif node.target is operator.getitem and isinstance(made.get(node.args[0]), (tuple, list)):
                made[node] = made[node.args[0]][node.args[1]]
            elif node.op == "get_attr" and operands is not None:
                made[node] = self._attribute(gm, node)
            else:
                made[node] = self._copied(node, made, operands is not None)
        return None

    def _body(self, gm: GraphModule, node: Node, made: Mapping[Node, Any]) -> Any:
        body, _, *operands = node.args
        assert isinstance(body, Node)
        graph = getattr(gm, str(body.target))
        if any(has_fresh_symbols(n.meta.get("example_value")) for n in graph.graph.nodes):
            self.kept.append(node.name)
            return self._copied(node, made, False)
        self.calls += 1
        return self.copy(graph, map_arg(operands, made.__getitem__))

    def _attribute(self, gm: GraphModule, node: Node) -> Node:
        """What a body holds, a constant or a graph, held by the graph that it is written into."""
        name = f"{str(node.target).replace('.', '_')}_{len(self.graph.nodes)}"
        setattr(self.gm, name, getattr(gm, str(node.target)))
        new = self.graph.get_attr(name)
        new.meta = dict(node.meta)
        return new

    def _copied(self, node: Node, made: Mapping[Node, Any], of_body: bool) -> Node:
        new = self.graph.node_copy(node, made.__getitem__)
        new.meta = dict(node.meta)
        if of_body and node.op in ("call_function", "call_method") and "example_value" in node.meta:
            new.meta["example_value"] = self._value(new)
        return new

    def _value(self, node: Node) -> Any:
        """What a call gives for fake tensors."""

        def known(n: Node) -> Any:
            return getattr(self.gm, str(n.target)) if n.op == "get_attr" else n.meta["example_value"]

        args, kwargs = map_arg(node.args, known), map_arg(node.kwargs, known)
        with fake_mode_of(self.inputs):
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            return node.target(*args, **kwargs)  # type: ignore[operator]


def with_inlined(gm: GraphModule, example_inputs: Sequence[Any], record: Record, name: str) -> GraphModule:
    """``gm`` with the regions that its user marked to be compiled once in the place of their calls."""
    with fresh_symbols_dropped(example_inputs):
        found = inlined(gm)
    if found is None:
        return gm
    why = reasons.INLINED_REGIONS(count=found.calls)
    decisions = [Decision("nested region", (name,), True, why)] if found.calls else []
    if found.kept:
        decisions.append(Decision("nested region", found.kept, False, reasons.REGION_KEPT()))
    record.note(name, "inline", *decisions)
    return found.gm
