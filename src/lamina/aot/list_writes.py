"""Writes to lists of tensors raise the versions of these also while AOTAutograd traces.

Autograd refuses a gradient for which a value was saved that has been written to since, and finds out by the value's
version. Made functional, a write to one tensor raises its version, a write to a list of tensors (``_foreach_mul_``)
does not: the gradient would silently be that of the new values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.base.aliasing import tensors_written
from lamina.base.fx.copying import Made, copy_nodes

__all__ = ["with_versions"]


def with_versions(gm: GraphModule) -> GraphModule:
    """``gm`` if no call in it writes to a list of tensors, else a copy in which versions are raised after each."""
    written = {node: lists for node in gm.graph.nodes if (lists := _written_lists(node))}
    if not written:
        return gm
    graph = Graph()
    copy_nodes(graph, gm.graph.nodes, writes={n: partial(_raising, n, lists) for n, lists in written.items()})
    result = GraphModule(gm, graph)
    result.meta.update(gm.meta)
    return result


def _raising(node: Node, written: Sequence[Node], graph: Graph, made: Made) -> Node:
    """The write, and after it the call that raises versions."""
    copied = graph.node_copy(node, made.__getitem__)
    raised = graph.call_function(_raise_versions, ([made[one] for one in written],))
    raised.meta = {k: v for k, v in node.meta.items() if k in ("stack_trace", "nn_module_stack")}
    return copied


def _written_lists(node: Node) -> list[Node]:
    """The tensors of lists that a captured call writes to."""
    lists = (*node.args[:1], node.kwargs.get("out"))
    members = {one for each in lists if isinstance(each, (list, tuple)) for one in each if isinstance(one, Node)}
    return [one for one in tensors_written(node) if one in members]


def _raise_versions(tensors: Sequence[torch.Tensor]) -> None:
    """Tell autograd that ``tensors`` were written to; those of inference mode have no versions."""
    torch.autograd.graph.increment_version([t for t in tensors if not t.is_inference()])
