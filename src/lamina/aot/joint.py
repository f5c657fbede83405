"""Putting a traced graph in order before it is partitioned or compiled."""

from __future__ import annotations

from operator import getitem

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.aot.gaps import without_gaps
from lamina.aot.source import annotate_sources
from lamina.aot.torch_private import is_checkpointed

__all__ = ["prepare", "unsupported"]

aten = torch.ops.aten


def prepare(gm: GraphModule) -> None:
    """Note each node's source, and take out, in place, what only autograd's bookkeeping put there.

    Kernels make no memory with gaps, so what reads such a result reads a dense copy. What counts elements of memory is
    called on what has that memory.
    """
    annotate_sources(gm.graph)
    changed = _drop_detach(gm.graph)
    changed = _stride_whole_memory(gm.graph) or changed
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


def _stride_whole_memory(graph: Graph) -> bool:
    """Let ``as_strided`` of a view be one of what the view is of: a copy of the view's elements alone lacks others."""
    changed = False
    for node in graph.find_nodes(op="call_function", target=aten.as_strided.default):
        view, size, stride, *offset = node.args
        start = node.kwargs.get("storage_offset", offset[0] if offset else None)
        start = view.meta["val"].storage_offset() if start is None else start
        base = view
        while (above := _same_memory(base)) is not None:
            base = above
        if base is not view and isinstance(start, (int, Node)):
            node.args, node.kwargs = (base, size, stride, start), {}
            changed = True
    return changed


def _same_memory(node: Node) -> Node | None:
    """The operand of which a node is a view, with elements of the same type; None if it is none."""
    call = node.args[0] if node.target is getitem and isinstance(node.args[0], Node) else node
    if not getattr(call.target, "is_view", False) or not isinstance(call.args[0], Node):
        return None
    values = [one.meta["val"] for one in (node, call.args[0])]
    kinds = {(one.dtype, one.is_conj(), one.is_neg()) for one in values}
    return call.args[0] if len(kinds) == 1 else None


def _drop_unused_statistics(graph: Graph) -> bool:
    """Batch norm's backward in training takes the running statistics and never reads them; do not keep them for it."""
    changed = False
    for node in graph.find_nodes(op="call_function", target=aten.native_batch_norm_backward.default):
        if node.args[7] is True and any(node.args[3:5]):
            node.args = (*node.args[:3], None, None, *node.args[5:])
            changed = True
    return changed
