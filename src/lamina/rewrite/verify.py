"""The normal form of a tensor graph, checked."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.base.torch_private import HigherOrderOperator, OpOverload, schema_of
from lamina.errors import InvalidIR

__all__ = ["verify_fx"]

_COPY = torch.ops.aten.copy_.default


def verify_fx(gm: GraphModule, where: str) -> GraphModule:
    """``gm`` itself, if it is in normal form.

    That is: calls to operators and attributes only, operands before their users, no writes except ``aten.copy_``
    into placeholders after everything that reads them, ``meta["val"]`` on every node, no dead nodes, one output at
    the end. Raises ``InvalidIR`` naming the first offending node and ``where`` it was found.
    """
    for node, fault in _faults(gm.graph):
        raise InvalidIR(
            f"after {where}: node {node.name!r} ({node.format_node()}) {fault}", where=str(node.meta.get("source", ""))
        )
    return gm


def _faults(graph: Graph) -> Iterator[tuple[Node, str]]:
    seen: set[Node] = set()
    copied: set[Node] = set()
    finished = False
    for node in graph.nodes:
        if finished:
            yield node, "comes after the output"
        for operand in node.all_input_nodes:
            if operand not in seen:
                yield node, f"reads {operand.name!r} before it is computed"
            if operand in copied and node.op != "output":
                yield node, f"reads {operand.name!r} after it was written"
        fault = _fault(node)
        if fault:
            yield node, fault
        if node.target is _COPY and isinstance(node.args[0], Node):
            copied.add(node.args[0])
        seen.add(node)
        finished = node.op == "output"
    if not finished:
        yield next(iter(graph.nodes)), "starts a graph without an output"


def _fault(node: Node) -> str:
    """What is wrong with ``node`` by itself; "" when nothing is."""
    if node.op == "output":
        return "" if isinstance(node.args[0], (tuple, list)) else "returns something other than a tuple"
    if node.op not in ("placeholder", "call_function", "get_attr"):
        return f"is a {node.op}"
    if node.op != "get_attr" and "val" not in node.meta:
        return 'has no meta["val"]'
    if node.op != "call_function":
        return ""
    if not node.users and not node.is_impure():
        return "is dead"
    return _call_fault(node)


def _call_fault(node: Node) -> str:
    target = node.target
    if target is _COPY:
        destination = node.args[0]
        if not isinstance(destination, Node) or destination.op != "placeholder":
            return "writes to something other than an input"
        return "" if not node.users else "is a write whose result is used"
    if isinstance(target, OpOverload):
        return f"{target} writes to its operands" if schema_of(target).is_mutable else ""
    if isinstance(target, HigherOrderOperator) or target is operator.getitem:
        return ""
    return "" if _is_symbolic(node) else f"calls {target}, which is not an operator"


def _is_symbolic(node: Node) -> bool:
    """Whether the call is arithmetic on sizes."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))
