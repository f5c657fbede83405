"""Small exact rewrites: dead code, common subexpressions, operations that do nothing.

Each pass takes a graph module and returns a new one, or the very same when it changes nothing; all but ``clean``
change the graph in place. All are linear in the graph. Two values of the user's program stay two tensors wherever the
user can tell: a node that reaches an output, itself or through views, is never merged or removed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Container, Hashable, Iterable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.fx.editing import Substitution, erase_dead, rebuild, substitute
from lamina.base.source import source_of
from lamina.base.torch_private import OpOverload
from lamina.ir.library import is_custom
from lamina.ops import overloads, row_of
from lamina.ops.aliasing import makes_view
from lamina.rewrite.reasons import PASS_CHANGED
from lamina.rewrite.torch_private import same_size

__all__ = ["calls_of", "clean", "escaping", "merge_common", "remove_dead_code", "remove_no_ops", "same_layout"]

aten = torch.ops.aten

_SAME_VALUE = overloads(lambda row: bool(row.elements))
"""Operations whose result has the operand's elements; in the same places, if shape and strides are the operand's.

A permutation that changes neither only swaps sizes of one; a slice that keeps the size keeps its start.
"""

_NEUTRAL = overloads(lambda row: row.neutral is not None)
"""Operations that give back their first operand when the second is some number."""


def remove_dead_code(gm: GraphModule, decisions: list[Decision] | None = None) -> GraphModule:
    """Drop calls without effect whose results nothing uses."""
    if decisions is not None:
        for node in gm.graph.nodes:
            if not node.users and node.op == "call_function" and not node.is_impure():
                _note(decisions, "remove_dead_code", node, f"nothing uses {node.name}")
    return erase_dead(gm)


def remove_no_ops(gm: GraphModule, decisions: list[Decision] | None = None) -> GraphModule:
    """Drop copies, casts, views and arithmetic that give back their operand unchanged."""
    stand_in: Substitution = {}
    _find_no_ops(gm.graph, stand_in, escaping(gm.graph))
    for node in stand_in:
        _note(decisions, "remove_no_ops", node, f"{node.name} gives back {node.args[0]}")
    return substitute(gm, stand_in)


def merge_common(gm: GraphModule, decisions: list[Decision] | None = None) -> GraphModule:
    """Compute equal pure calls once."""
    stand_in: Substitution = {}
    _find_common(gm.graph, stand_in, escaping(gm.graph))
    for node, first in stand_in.items():
        _note(decisions, "merge_common", node, f"{node.name} is {first.name}, computed before")
    return substitute(gm, stand_in)


def _note(decisions: list[Decision] | None, name: str, node: Node, what: str) -> None:
    if decisions is not None:
        decisions.append(Decision("rewrite", (name, source_of(node)), True, PASS_CHANGED(what=what)))


def clean(gm: GraphModule, without: Container[str] = ()) -> GraphModule:
    """All passes of this file, except those named, with one new graph at most."""
    stand_in: Substitution = {}
    visible = escaping(gm.graph)
    if "remove_no_ops" not in without:
        _find_no_ops(gm.graph, stand_in, visible)
    if "merge_common" not in without:
        _find_common(gm.graph, stand_in, visible)
        for node, other in stand_in.items():  # what a call gives back may be computed before
            stand_in[node] = stand_in.get(other, other)
    return rebuild(gm, stand_in)


def calls_of(graph: Graph, targets: Iterable[Any]) -> list[Node]:
    """The calls of these functions, in order."""
    found = [graph.find_nodes(op="call_function", target=target, sort=False) for target in targets]
    return sorted(node for nodes in found for node in nodes)


def escaping(graph: Graph) -> set[Node]:
    """Nodes the caller can see: those returned, and what those are views of."""
    found: set[Node] = set(graph.output_node().all_input_nodes)
    for node in reversed(graph.nodes):
        if node in found and node.op == "call_function" and makes_view(node.target):
            found.update(node.all_input_nodes)
    return found


def _find_no_ops(graph: Graph, stand_in: Substitution, visible: set[Node]) -> None:
    for node in calls_of(graph, (*_SAME_VALUE, *_NEUTRAL)):
        if node in visible or not node.args:
            continue
        source = node.args[0]
        if isinstance(source, Node) and _gives_back(node, source):
            stand_in[node] = stand_in.get(source, source)


def _gives_back(node: Node, source: Node) -> bool:
    if node.target in _SAME_VALUE:
        return same_layout(node, source)
    row = row_of(node.target)
    if row is None or row.neutral is None or len(node.args) < 2 or node.kwargs:
        return False
    other = node.args[1]
    if (
        isinstance(other, bool)
        or not isinstance(other, (int, float))
        or other != row.neutral
        or math.copysign(1, other) < 0
    ):
        return False  # x - (-0.0) is 0.0 where x is -0.0
    if not row.signed_zero and (node.meta["val"].is_floating_point() or node.meta["val"].is_complex()):
        return False  # -0.0 + 0 is 0.0
    return same_layout(node, source)


def same_layout(node: Node, source: Node) -> bool:
    """Whether two nodes have one dtype, device, shape and strides, as far as symbols tell."""
    a, b = node.meta.get("val"), source.meta.get("val")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    if a.dim() != b.dim() or not all(map(same_size, a.shape, b.shape)):
        return False
    if a.layout != torch.strided or b.layout != torch.strided or not all(map(same_size, a.stride(), b.stride())):
        return False
    return a.dtype == b.dtype and a.device == b.device and a.is_conj() == b.is_conj() and a.is_neg() == b.is_neg()


def _find_common(graph: Graph, stand_in: Substitution, visible: set[Node]) -> None:
    first: dict[Hashable, Node] = {}
    for node in graph.nodes:
        if node in stand_in or node in visible:
            continue
        if node.op != "get_attr" and not isinstance(node.target, OpOverload) and node.target is not operator.getitem:
            continue
        kwargs = _key(node.kwargs, stand_in) if node.kwargs else ()
        other = first.setdefault((node.op, node.target, _key(node.args, stand_in), kwargs), node)
        if other is not node and _is_pure(node):  # asked last: it takes longest
            stand_in[node] = other


def _is_pure(node: Node) -> bool:
    """Whether equal calls like this one give equal values."""
    if node.op == "get_attr" or node.target is operator.getitem:
        return True
    # Nothing says that what the user's operation returns depends on its arguments alone.
    return not is_custom(str(node.target)) and not node.is_impure()


def _key(value: Any, stand_in: Substitution) -> Hashable:
    """``value`` as something that is equal exactly when it means the same: 1, 1.0 and True do not, nor 0.0 and -0.0."""
    if isinstance(value, Node):
        return stand_in.get(value, value)
    if isinstance(value, (list, tuple)):
        return tuple(_key(item, stand_in) for item in value)
    if isinstance(value, dict):
        return tuple((name, _key(item, stand_in)) for name, item in sorted(value.items()))
    if isinstance(value, slice):
        return (slice, _key((value.start, value.stop, value.step), stand_in))
    return (type(value), repr(value)) if isinstance(value, (float, complex)) else (type(value), value)
