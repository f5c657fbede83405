"""A backward graph for gradients that are not there: nothing flows back from an output that no loss depends on.

Eager does not run the derivatives of such an output. Computing them with zeros instead gives NaN where a derivative is
infinite, gradients of zeros where eager has none, and asks for saved values that an earlier backward has freed.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch.fx import GraphModule, Node

from lamina.aot.tangents import copied

__all__ = ["needs_saved", "without_absent", "without_saved", "without_unread"]

_SUMS = (torch.ops.aten.add.Tensor, torch.ops.prims.add.default)


def without_absent(backward: GraphModule, tangents: Collection[str], absent: Collection[str]) -> GraphModule | None:
    """A copy of ``backward`` without those of its ``tangents``, names of placeholders, that are ``absent``.

    What depends on gradients only through absent ones is none, as eager does not run it; of a sum the other term is
    left, and any other operation gets zeros. None if the graph has effects besides its results, or if the zeros would
    have symbolic sizes.
    """
    if any(
        n.op not in ("placeholder", "call_function", "output", "get_attr") or n.is_impure() for n in _inner(backward)
    ):
        return None
    copy = copied(backward)
    graph = copy.graph
    flowing: set[Node] = set()
    none: set[Node] = set()
    for node in list(graph.nodes):
        if node.op == "placeholder":
            if node.name in tangents:
                flowing.add(node)
            if node.name in absent:
                none.add(node)
        elif node.op == "output":
            node.args = (torch.fx.map_arg(node.args[0], lambda n: None if n in none else n),)
        elif not _visit(node, flowing, none):
            return None
    graph.eliminate_dead_code()
    for node in graph.find_nodes(op="placeholder"):
        if node in none:
            graph.erase_node(node)
    graph.lint()
    copy.recompile()
    return copy


def needs_saved(backward: GraphModule, tangents: Collection[str]) -> bool:
    """Whether the graph reads any input besides its ``tangents``."""
    return any(n.users for n in backward.graph.find_nodes(op="placeholder") if n.name not in tangents)


def without_saved(backward: GraphModule, tangents: Collection[str]) -> GraphModule:
    """A copy of ``backward`` that takes its ``tangents``, and what else is named, only; it reads no other input."""
    copy = copied(backward)
    for node in copy.graph.find_nodes(op="placeholder"):
        if node.name not in tangents:
            copy.graph.erase_node(node)
    copy.recompile()
    return copy


def without_unread(backward: GraphModule, saved: Collection[str]) -> GraphModule:
    """``backward`` as a graph that takes no ``saved`` tensor which it does not read."""
    read = [n.name for n in backward.graph.find_nodes(op="placeholder") if n.users or n.name not in saved]
    return without_saved(backward, read)


def _inner(gm: GraphModule) -> list[Node]:
    return [n for n in gm.graph.nodes if n.op not in ("placeholder", "output")]


def _visit(node: Node, flowing: set[Node], none: set[Node]) -> bool:
    """Enter ``node`` where it belongs, with what is left of it where only some of its gradients are there.

    False if it wants zeros that cannot be made.
    """
    operands = [n for n in node.all_input_nodes if n in flowing]
    if not operands:
        return True
    flowing.add(node)
    missing = [n for n in operands if n in none]
    if len(missing) == len(operands):
        none.add(node)
    elif missing:
        (other, *more) = [n for n in node.args if n not in missing] or [None]
        if node.target in _SUMS and isinstance(other, Node) and not more and not node.kwargs and _alike(node, other):
            node.replace_all_uses_with(other)
            return True
        for operand in missing:
            value = operand.meta.get("val")
            if not isinstance(value, torch.Tensor) or not all(isinstance(n, int) for n in value.shape):
                return False
            node.replace_input_with(operand, _zeros(node, operand))
    return True


def _alike(node: Node, other: Node) -> bool:
    """Whether two nodes hold tensors of one shape, type and layout."""
    a, b = node.meta.get("val"), other.meta.get("val")
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return False
    return (a.shape, a.dtype, a.device, a.stride()) == (b.shape, b.dtype, b.device, b.stride())


def _zeros(before: Node, like: Node) -> Node:
    """Zeros like the value of ``like``, made before the node ``before``."""
    value = like.meta["val"]
    with before.graph.inserting_before(before):
        made = before.graph.call_function(
            torch.ops.aten.full.default,
            (list(value.shape), 0),
            {"dtype": value.dtype, "layout": torch.strided, "device": value.device, "pin_memory": False},
        )
    made.meta.update({k: v for k, v in like.meta.items() if k != "val"})
    with value.fake_mode:
        made.meta["val"] = torch.full(value.shape, 0, dtype=value.dtype, device=value.device)
    return made
