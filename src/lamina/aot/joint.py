"""Putting a traced graph in order before it is partitioned or compiled."""

from __future__ import annotations

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.aot.gaps import without_gaps
from lamina.aot.source import annotate_sources
from lamina.aot.torch_private import is_checkpointed

__all__ = ["prepare", "unsupported"]

aten = torch.ops.aten


def prepare(gm: GraphModule) -> None:
    """Note each node's source, and take out, in place, what only autograd's bookkeeping put there.

    Kernels make no memory with gaps, so what reads such a result reads a dense copy.
    """
    annotate_sources(gm.graph)
    changed = _drop_detach(gm.graph)
    changed = _drop_unused_statistics(gm.graph) or changed
    if changed:
        gm.graph.eliminate_dead_code()
    without_gaps(gm.graph)


def unsupported(joint: GraphModule) -> str:
    """Why the joint graph must go to torch's partitioner; "" when ours takes it."""
    for node in joint.graph.nodes:
        if node.op == "placeholder" and any(word in str(node.target) for word in ("seed", "offset", "token")):
            return f"{node.target} carries state of the random generator or of side effects"
        if is_checkpointed(node):
            return "the user's activation checkpointing decides what is saved"
        if node.target is aten.copy_.default and str(node.meta.get("partitioner_tag")).endswith("backward"):
            return "the backward writes to an input"
        value = node.meta.get("val")
        if node.op == "placeholder" and not isinstance(value, _PLAIN):
            return f"{node.target} is a {type(value).__name__}"
    return ""


_PLAIN = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool, type(None))


def _drop_detach(graph: Graph) -> bool:
    """In a functional graph detach and alias are their operand, except where the graph returns them."""
    changed = False
    for target in (aten.detach.default, aten.alias.default):
        for node in graph.find_nodes(op="call_function", target=target):
            changed = bool(node.replace_all_uses_with(node.args[0], delete_user_cb=_computes)) or changed
    return changed


def _computes(user: Node) -> bool:
    return user.op != "output"


def _drop_unused_statistics(graph: Graph) -> bool:
    """Batch norm's backward in training takes the running statistics and never reads them; do not keep them for it."""
    changed = False
    for node in graph.find_nodes(op="call_function", target=aten.native_batch_norm_backward.default):
        if node.args[7] is True and any(node.args[3:5]):
            node.args = (*node.args[:3], None, None, *node.args[5:])
            changed = True
    return changed
