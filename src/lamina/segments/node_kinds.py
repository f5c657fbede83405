"""What each node of a graph is that may be cut: computed in a segment, or run between segments, and why."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.backends.torch_private import number_symbol, symbols_in
from lamina.base.reasons import Reason
from lamina.base.torch_private import HigherOrderOperator, OpOverload
from lamina.lower.rules import RULES
from lamina.lower.sizes import UnknownSize, expr_of, leaves_in
from lamina.lower.to_loops import is_lowered_wrapper, is_size_float
from lamina.segments import reasons

__all__ = ["ASSERTIONS", "CONSTANT", "INNER", "OUTER", "SIZE", "NodeKinds", "classify", "cuts_by_itself"]

aten = torch.ops.aten

INNER, OUTER, SIZE, CONSTANT = "inner", "outer", "size", "constant"
"""Kinds: a call in a segment, what runs between them, a size that both can compute, a tensor that the graph holds."""

ASSERTIONS = ("aten._assert_scalar.", "aten.sym_constrain_range.", "aten.sym_constrain_range_for_size.")
"""What names of operations that check a number begin with."""


@dataclass(slots=True)
class NodeKinds:
    """What is known of a graph's nodes: their kind, why some cut, and the node that gives each symbol."""

    kinds: dict[Node, str] = field(default_factory=dict)
    reasons: dict[Node, Reason] = field(default_factory=dict)
    binders: dict[Any, Node] = field(default_factory=dict)
    asked: set[Any] = field(default_factory=set)
    """Limits of sizes that a node has before anything that runs between segments gives them."""
    levels: dict[Node, int] = field(default_factory=dict)
    refused: dict[Node, str] = field(default_factory=dict)


def cuts_by_itself(gm: GraphModule, node: Node) -> bool:
    """A quick look: whether the node may make a number, checks one, or holds a graph."""
    if node.op == "get_attr":
        return isinstance(getattr(gm, str(node.target), None), torch.nn.Module)
    if node.op != "call_function":
        return False
    return bool(node.meta.get("unbacked_bindings")) or str(node.target).startswith(ASSERTIONS) or _makes_number(node)


def _makes_number(node: Node) -> bool:
    return node.target is aten._local_scalar_dense.default


def classify(gm: GraphModule, found: NodeKinds) -> None:
    """Tell the kind of each node of ``gm``; sizes that nodes between segments give get nodes of their own."""
    known: set[Any] = set()
    inputs = gm.graph.find_nodes(op="placeholder")
    for node in sorted(inputs, key=lambda n: isinstance(n.meta.get("val"), torch.Tensor)):
        known |= symbols_in(node.meta.get("val"))
        _bind(gm.graph, node, found)
    for node in list(gm.graph.nodes):
        if node.op == "get_attr":
            holds_graph = isinstance(getattr(gm, str(node.target), None), torch.nn.Module)
            found.kinds[node] = OUTER if holds_graph else CONSTANT
        elif node.op == "call_function":
            new = symbols_in(node.meta.get("val")) - known
            reason = _reason(node, bool(new), found)
            found.kinds[node] = OUTER if reason else SIZE if _is_number(node) else INNER
            known |= new
            if not reason:
                limits = {e for e in leaves_in(node.meta.get("val")).values() if not e.is_symbol}
                found.asked |= limits - found.binders.keys()
            else:
                if not (node.target is operator.getitem or (_is_number(node) and not new)):
                    found.reasons[node] = reason
                _bind(gm.graph, node, found)


def _reason(node: Node, makes_symbols: bool, found: NodeKinds) -> Reason | None:
    """Why a call runs between segments; None if it does not."""
    for given in (node, *node.all_input_nodes):
        if given in found.refused and (given is node or given.op in ("placeholder", "get_attr")):
            return reasons.NOT_LOWERED(why=found.refused[given])
    if node.target is operator.getitem:
        return reasons.CALLED_BETWEEN() if found.kinds.get(node.args[0]) is OUTER else None  # type: ignore[arg-type]
    if str(node.target).startswith(ASSERTIONS):
        return reasons.CHECKS_NUMBER()
    if makes_symbols or _makes_number(node):
        return reasons.CALLED_BETWEEN()
    if isinstance(node.target, HigherOrderOperator):
        holds_graph = any(n.op == "get_attr" and found.kinds[n] is OUTER for n in node.all_input_nodes)
        return None if is_lowered_wrapper(node) and not holds_graph else reasons.HOLDS_GRAPH()
    value = node.meta.get("val")
    if isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
        return None if _expressible(value) else reasons.NUMBER_ARITHMETIC()
    if isinstance(value, torch.SymFloat):
        plain = is_size_float(node) and not any(found.kinds.get(n) is OUTER for n in node.all_input_nodes)
        return None if plain and not _has_floats(value) else reasons.NUMBER_ARITHMETIC()
    if isinstance(value, torch.SymBool | bool | float) or not isinstance(node.target, OpOverload):
        return reasons.NUMBER_ARITHMETIC()
    numbers = [n.meta.get("val") for n in node.all_input_nodes]
    if any(isinstance(v, torch.SymBool) for v in numbers):
        return reasons.TAKES_NUMBER(what="truth value")
    if any(isinstance(v, torch.SymFloat) for v in numbers) and str(node.target) not in RULES:
        return reasons.TAKES_NUMBER(what="number")
    return None


def _is_number(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool)


def _expressible(value: Any) -> bool:
    try:
        expr_of(value)
    except UnknownSize:
        return False
    return True


def _has_floats(value: torch.SymFloat) -> bool:
    return any(not symbol.is_integer for symbol in symbols_in(value))


def _bind(graph: Graph, node: Node, found: NodeKinds) -> None:
    """Note the symbols that a node outside of segments gives; those in a tensor's sizes get a node of their own."""
    value = node.meta.get("val")
    symbol = number_symbol(value)
    if symbol is not None:
        found.binders.setdefault(symbol, node)
    if not isinstance(value, torch.Tensor):
        return
    for method, numbers in ((aten.sym_size.int, value.shape), (aten.sym_stride.int, value.stride())):
        for dim, number in enumerate(numbers):
            symbol = number_symbol(number)
            if symbol is None or symbol in found.binders or symbol in found.asked:
                continue
            with graph.inserting_after(node if node.op != "placeholder" else graph.find_nodes(op="placeholder")[-1]):
                made = graph.call_function(method, (node, dim))
            made.meta.update(val=number, source=node.meta.get("source", ""))
            found.binders[symbol], found.kinds[made] = made, OUTER
