"""Results whose memory has gaps: ``slice_scatter`` and its like lay their result out as the first operand.

Kernels make no such memory: a result of theirs is dense. What one graph hands over to another, a forward to its
backward or a segment to the next, has to be laid out as both take it to be.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from lamina.aot.layouts import same_strides

__all__ = ["LAID_OUT_AS_FIRST", "has_gaps", "without_gaps"]

LAID_OUT_AS_FIRST = frozenset(("as_strided_scatter", "diagonal_scatter", "select_scatter", "slice_scatter"))
"""Calls whose results eager lays out as the first operand, gaps included."""

_aten = torch.ops.aten
_SCATTERS = tuple(getattr(_aten, name).default for name in sorted(LAID_OUT_AS_FIRST))
_COPY = _aten.copy_.default


def has_gaps(value: Any) -> bool:
    """Whether a fake tensor of a memory of its own leaves some of it out."""
    return not same_strides(torch.empty_like(value), value)


def without_gaps(graph: Graph, copied: bool = False) -> None:
    """Let what reads a result with gaps read a dense copy, in place; with ``copied`` also what copies it to an input.

    What depends on the copy gets its value in ``meta["val"]`` anew.
    """
    moved: set[Node] = set()
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if any(operand in moved for operand in node.all_input_nodes) and _derived_anew(node):
            moved.add(node)
        if node.target not in _SCATTERS or not has_gaps(node.meta["val"]):
            continue
        with graph.inserting_after(node):
            dense = graph.call_function(_aten.clone.default, (node,))
        with torch.no_grad():
            # It keeps the order of dimensions in memory.
            dense.meta = {**node.meta, "val": _aten.clone.default(node.meta["val"])}
        for user in list(node.users):
            if user is not dense and (copied or user.target is not _COPY):
                user.replace_input_with(node, dense)
        moved.add(dense)


def _derived_anew(node: Node) -> bool:
    """Derive a node's value again; whether it is laid out otherwise now."""
    before, target = node.meta.get("val"), node.target
    if not isinstance(before, torch.Tensor) or target is _COPY or not callable(target):
        return False
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    with torch.no_grad():
        node.meta["val"] = target(*args, **kwargs)
    return not same_strides(before, node.meta["val"])
