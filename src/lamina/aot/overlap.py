"""Writes to tensors whose elements share memory: eager refuses most, and functional graphs know nothing of them."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.aot.torch_private import is_fake
from lamina.base.aliasing import writes_first
from lamina.base.source import source_of

__all__ = ["overlapping_write", "overlaps"]


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements share memory, as far as eager looks: along a dimension of stride 0.

    True as well where a symbolic size does not say whether there are two elements.
    """
    if tensor.layout is not torch.strided or any(_is_number(n) and n == 0 for n in tensor.shape):
        return False
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return any(_is_number(step) and step == 0 and not (_is_number(n) and n == 1) for n, step in steps)


def _is_number(size: int | torch.SymInt) -> bool:
    return isinstance(size, int)


def overlapping_write(gm: GraphModule) -> str:
    """Why the captured graph is eager's to run: the first write to a tensor whose elements share memory, or "".

    Depending on the operation eager refuses it, or writes to what the elements share. A view of an input of that kind
    counts as well.
    """
    for part in gm.modules():
        if isinstance(part, GraphModule) and (node := _first_write(part.graph)) is not None:
            return f"{source_of(node)} writes to a tensor whose elements share memory, which eager refuses for most"
    return ""


def _first_write(graph: Graph) -> Node | None:
    shared = {_storage(n) for n in graph.find_nodes(op="placeholder") if _overlapping(n)}
    node: Node
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method") or not node.args or not writes_first(node):
            continue
        written: Any = node.args[0]
        if isinstance(written, Node) and (_overlapping(written) or (shared and _storage(written) in shared)):
            return node
    return None


def _overlapping(node: Node) -> bool:
    value: Any = node.meta.get("example_value")
    return is_fake(value) and overlaps(value)


def _storage(node: Node) -> Any:
    """What tells the memory of a captured tensor from that of others."""
    value: Any = node.meta.get("example_value")
    return value.untyped_storage()._cdata if is_fake(value) and value.layout is torch.strided else None
