"""A backward graph for gradients laid out otherwise than the outputs they belong to.

Eager's backward takes gradients as they come: ``out.sum()`` hands over one number repeated with stride 0, a transposed
result may get a gradient in row order. Copying them to the strides of the outputs first can cost more than the whole
backward, so its graph is derived again for the strides that really arrive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node

from lamina.base.fx.copying import copy_nodes
from lamina.base.fx.torch_private import graph_module
from lamina.base.namespaces import KNOWN
from lamina.base.torch_private import OpOverload
from lamina.ops import overloads
from lamina.ops.row import RESHAPED

__all__ = ["copied", "restrided"]

_FIXED = overloads(lambda row: row.by_strides)
_VIEWS = overloads(lambda row: row.elements == RESHAPED)


def restrided(backward: GraphModule, strides: Mapping[str, tuple[int, ...]]) -> GraphModule | None:
    """A copy of ``backward`` whose placeholders named in ``strides`` have these strides (in elements).

    The values in ``meta["val"]`` are derived again, so gradients get the strides that eager would give them.
    None if the graph addresses memory by strides itself, or holds an operation that refuses the new ones. A user's
    operation may ask for its operands to be contiguous: of ``gradient.contiguous()`` the graph knows nothing where
    the gradient was so already.
    """
    if any(n.target in _FIXED or _is_foreign(n.target) for n in backward.graph.nodes):
        return None
    copy = copied(backward)
    graph = copy.graph
    values = []
    mode = None
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        if node.name in strides:
            mode = value.fake_mode
            with mode:
                value = torch.empty_strided(value.shape, strides[node.name], dtype=value.dtype, device=value.device)
        values.append(value)
    if mode is None:
        return None
    try:
        with mode, torch.no_grad():
            _Derive(copy).run(*values)
    except (RuntimeError, ValueError, TypeError):
        return None
    return copy


def copied(gm: GraphModule) -> GraphModule:
    """A copy of ``gm`` with nodes of its own, of the same names, and the same metadata."""
    graph = Graph()
    copy_nodes(graph, gm.graph.nodes)
    copy = graph_module(gm, graph, with_meta=False)
    copy.meta.update(gm.meta)
    return copy


def _is_foreign(target: Any) -> bool:
    """Whether an operator comes from neither torch nor this package."""
    return isinstance(target, OpOverload) and target.namespace not in KNOWN


class _Derive(Interpreter):
    """Runs a graph on fake tensors and notes each result; a view that the strides do not allow becomes a reshape."""

    def run_node(self, n: Node) -> Any:
        try:
            value = super().run_node(n)
        except RuntimeError:
            if n.target not in _VIEWS:
                raise
            n.target = torch.ops.aten.reshape.default
            value = super().run_node(n)
        if n.op != "output":
            n.meta["val"] = value
        return value
