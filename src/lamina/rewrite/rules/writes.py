"""Writes to a tensor that nothing else can see, as new values.

``scores /= 8; scores.masked_fill_(mask, -inf)`` and ``scores = scores / 8; scores = scores.masked_fill(mask, -inf)``
mean the same where ``scores`` was just computed. Rules then need to know the second form only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.fx.copying import Made, copy_nodes
from lamina.base.fx.torch_private import graph_module
from lamina.base.source import source_of
from lamina.rewrite.reasons import PASS_CHANGED
from lamina.rewrite.rules.spelling import Spelled, fake_of, number, spelled
from lamina.rewrite.torch_private import SET_GRAD, same_size

__all__ = ["without_fresh_writes"]

_FUNCTIONAL: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "masked_fill": torch.masked_fill,
    "triu": torch.triu,
    "tril": torch.tril,
}
"""Writing calls whose own backward does not need what they overwrite (``mul`` and ``div`` by numbers)."""
_FRESH = {"matmul", "einsum", "baddbmm", "add", "sub", "mul", "div", "masked_fill", "where", "linear", "triu", "tril"}
"""Operations that make a new tensor and whose backward does not need it, so that eager lets it be overwritten."""
_CONTIGUOUS = {"masked_fill", "triu", "tril"}
"""Calls that give a contiguous tensor, where the writing form keeps its operand's layout."""
_CREATING = {torch.ones, torch.zeros, torch.full, torch.ones_like, torch.zeros_like, torch.full_like, torch.empty}


def without_fresh_writes(gm: GraphModule, decisions: list[Decision]) -> GraphModule:
    """``gm`` with writes to fresh, unshared tensors as values of their own; ``gm`` itself if it has none."""
    tensors = _Tensors(gm.graph)
    chosen = {node: call for node in gm.graph.nodes if (call := tensors.fresh_write(node)) is not None}
    if not chosen:
        return gm
    for node in chosen:
        subject = ("without_fresh_writes", source_of(node))
        reason = PASS_CHANGED(what="nothing had read the tensor that this writes to")
        decisions.append(Decision("rewrite", subject, True, reason))
    graph = Graph()

    def write(node: Node, graph: Graph, made: Made) -> Node:
        call = chosen[node]
        args, kwargs = _arguments(call)
        moved = torch.fx.node.map_arg(args, made.__getitem__)
        new = graph.call_function(_FUNCTIONAL[call.name], tuple(moved), kwargs)
        new.meta = dict(node.meta)
        for name in tensors.names(node):  # from here on every name of the tensor means the new value
            made[name] = new
        return new

    copy_nodes(graph, gm.graph.nodes, writes={node: partial(write, node) for node in chosen})
    return graph_module(gm, graph)


class _Tensors:
    """Which nodes are names of one tensor, through the writes found so far, and where each was last read."""

    def __init__(self, graph: Graph) -> None:
        self.order = {node: place for place, node in enumerate(graph.nodes)}
        self.unrecorded = _unrecorded(graph)
        self._root: dict[Node, Node] = {}
        self._names: dict[Node, list[Node]] = {}

    def names(self, node: Node) -> list[Node]:
        """The nodes that stand for the same tensor as ``node``, itself included."""
        return self._names[self._root[node]]

    def fresh_write(self, node: Node) -> Spelled | None:
        """The call, if it writes to a tensor whose value nothing has read yet."""
        call = spelled(node)
        if call is None or not call.writes or call.name not in _FUNCTIONAL or not isinstance(call.args[0], Node):
            return None
        if call.name in ("mul", "div") and (number(call.args[1]) is None or call.args[2:] not in ((), (None,))):
            return None
        target = call.args[0]
        root = self._root.get(target, target)
        names = self._names.get(root, [root])
        if not _is_fresh(root) or self._is_read_before(node, names) or not _keeps_form(target, call):
            return None
        # A write with gradients switched off leaves the tensor's history as it is; a new value would have none.
        if any((n in self.unrecorded) != (node in self.unrecorded) for n in names):
            return None
        self._names[root] = [*names, node]
        self._root[root] = self._root[node] = root
        return call

    def _is_read_before(self, write: Node, names: list[Node]) -> bool:
        """What was kept of the tensor for a backward would be found changed: an error in eager."""
        writes = {n for n in names if n is not self._root.get(names[0], names[0])}
        return any(self.order[user] < self.order[write] for n in names for user in n.users if user not in writes)


def _arguments(call: Spelled) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if call.name in ("add", "sub"):
        return call.args[:2], {"alpha": call.args[2]}
    return (call.args[:2], {}) if call.name == "div" else (call.args, {})


def _unrecorded(graph: Graph) -> frozenset[Node]:
    """The calls made where gradients are switched off."""
    found: set[Node] = set()
    recording = torch.is_grad_enabled()
    for node in graph.nodes:
        if node.target is SET_GRAD:
            recording = bool(node.args[0])
        elif not recording and node.op.startswith("call"):
            found.add(node)
    return frozenset(found)


def _is_fresh(node: Node) -> bool:
    if node.op == "call_function" and node.target in _CREATING:
        return True
    call = spelled(node)
    if call is not None and call.name == "reshape" and isinstance(call.args[0], Node):
        return set(call.args[0].users) == {node} and _is_fresh(call.args[0])  # nothing else sees what it is a view of
    if call is not None and call.name == "einsum" and len(call.args) < 3:
        return False  # of one operand it may be a view
    return call is not None and call.name in _FRESH and not call.writes


def _keeps_form(target: Node, call: Spelled) -> bool:
    """Whether the functional form has the dtype, the shape and the layout that the written tensor keeps."""
    value = fake_of(target)
    if value is not None and call.name in _CONTIGUOUS and not value.is_contiguous():
        return False
    if value is None or not value.is_floating_point():
        return value is not None and call.name in ("triu", "tril")
    for other in call.args[1:]:
        fake = fake_of(other)
        if not isinstance(other, Node):
            continue
        if fake is None or (fake.dtype not in (value.dtype, torch.bool) and fake.dim() > 0) or fake.dim() > value.dim():
            return False
        if fake.dtype.is_complex or fake.device != value.device:
            return False
        if not all(
            same_size(a, 1) or same_size(a, b)
            for a, b in zip(reversed(fake.shape), reversed(value.shape), strict=False)
        ):
            return False
    return True
