"""What editing FX graphs takes from torch beyond its documented interface."""

from __future__ import annotations

from torch.fx import Graph, GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule

__all__ = ["graph_module"]


def graph_module(root: GraphModule, graph: Graph, *, with_meta: bool = True) -> GraphModule:
    """A graph module whose Python code is only generated when something runs or prints it.

    It shares the ``meta`` of ``root`` if ``with_meta``; else it has an empty one of its own.
    """
    result = _LazyGraphModule(root, graph)
    if with_meta:
        result.meta = root.meta
    return result
