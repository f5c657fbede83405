"""Changing a captured graph: new calls in the place of one node, and what then nothing needs taken out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.base.fx.copying import Made, copy_nodes
from lamina.base.fx.torch_private import graph_module
from lamina.rewrite.rules.spelling import written
from lamina.rewrite.torch_private import fake_mode_of

__all__ = ["Replacement", "Writer", "replaced"]


class Writer:
    """Writes calls into a graph in the place of a node, with fakes and the user's line carried over."""

    def __init__(self, graph: Graph, made: Mapping[Node, Node], place: Node) -> None:
        self._graph, self._made, self._place = graph, made, place

    def old(self, node: Node) -> Node:
        """What a node of the graph being replaced is in the new one."""
        return self._made[node]

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        """A call of a torch function on nodes of the new graph and constants."""
        return self._add("call_function", target, target, args, kwargs)

    def method(self, name: str, *args: Any) -> Node:
        """A call of a tensor's method."""
        return self._add("call_method", name, getattr(torch.Tensor, name), args, {})

    def _add(
        self, op: str, target: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Node:
        node = self._graph.create_node(op, target, args, kwargs)
        node.meta = {
            k: self._place.meta[k]
            for k in ("stack_trace", "nn_module_stack", "source_fn_stack")
            if k in self._place.meta
        }
        given, named = _fakes(args), _fakes(kwargs)
        with fake_mode_of([v for v in given if isinstance(v, torch.Tensor)]):
            node.meta["example_value"] = run(*given, **named)
        return node


Replacement = Callable[[Writer], Node]
"""Writes what stands in the place of a node, and gives the node that holds its value."""


def replaced(gm: GraphModule, replacements: Mapping[Node, Replacement]) -> GraphModule:
    """``gm`` with each of these nodes written anew, without the calls that only they needed."""
    if not replacements:
        return gm
    graph = Graph()
    made = copy_nodes(
        graph, gm.graph.nodes, writes={node: partial(_write, node, replacements[node]) for node in replacements}
    )
    _drop_unused(graph, [made[n] for n in gm.graph.nodes if n.users and made[n].op != "output"])
    graph.lint()
    return graph_module(gm, graph)


def _write(place: Node, replacement: Replacement, graph: Graph, made: Made) -> Node:
    return replacement(Writer(graph, made, place))


def _drop_unused(graph: Graph, had_users: list[Node]) -> None:
    """Take out calls that something needed before and nothing needs now."""
    for node in reversed(had_users):
        if not node.users and node.op in ("call_function", "call_method") and not written(node):
            graph.erase_node(node)


def _fakes(value: Any) -> Any:
    if isinstance(value, Node):
        return value.meta["example_value"]
    if isinstance(value, (tuple, list)):
        return type(value)(_fakes(v) for v in value)
    if isinstance(value, dict):
        return {k: _fakes(v) for k, v in value.items()}
    return value
