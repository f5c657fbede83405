"""Windows of a tensor that a program may write to, as strided views.

A write to a view becomes a new value of what it is a view of. For ``unfold`` torch computes that value from the windows
alone, with zeros between and after them: elements in no window would be lost. A strided view keeps what it leaves out.
Windows that overlap stay what they are: torch refuses to make a value of a write to them, and eager does it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.fx.copying import copy_nodes
from lamina.base.fx.torch_private import graph_module
from lamina.base.source import source_of
from lamina.rewrite.reasons import PASS_CHANGED

__all__ = ["strided_windows"]

_UNFOLD = ("unfold", torch.Tensor.unfold, torch.ops.aten.unfold.default)


def strided_windows(gm: GraphModule, decisions: list[Decision]) -> GraphModule:
    """``gm`` with ``as_strided`` for ``unfold`` where the program writes to any tensor; ``gm`` itself otherwise."""
    found = {node for node in gm.graph.nodes if node.target in _UNFOLD and node.op in ("call_method", "call_function")}
    if not found or not any(_may_write(node) for node in gm.graph.nodes):
        return gm
    graph = Graph()
    for node, new in copy_nodes(graph, gm.graph.nodes).items():
        if node in found:
            new.op, new.target = "call_function", windows
            reason = PASS_CHANGED(what="a view keeps the rest")
            decisions.append(Decision("rewrite", ("strided_windows", source_of(node)), True, reason))
    return graph_module(gm, graph)


def windows(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """``x.unfold(dimension, size, step)`` of any strides; errors are those of ``unfold``."""
    whole = x.unfold(dimension, size, step)
    if x.dim() == 0 or step < size:
        return whole
    return x.as_strided(whole.shape, whole.stride(), whole.storage_offset())


def _may_write(node: Node) -> bool:
    """Whether the call may write to a tensor: by its name, its ``out=``, or a switch such as ``inplace``."""
    if node.op not in ("call_method", "call_function"):
        return node.op == "call_module"
    name = str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))
    if name.split(".")[0].endswith("_") or name in _WRITING:
        return True
    switches: list[Any] = [*node.args, node.kwargs.get("inplace")]
    return node.kwargs.get("out") is not None or any(value is True for value in switches)


_WRITING = {
    *("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul"),
    *("iand", "ior", "ixor", "ilshift", "irshift", "__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"),
    *("__ifloordiv__", "__imod__", "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"),
}
