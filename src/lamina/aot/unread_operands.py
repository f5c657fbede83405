"""Operands that backward formulas ask for and do not read, which need not be saved for them.

The gradient of a mean over windows asks for what was averaged, and takes its sizes only. That of ``logsigmoid`` asks
for an exponential that costs less to compute again, beside the operand that it reads anyway, than to load. Saved for
such a formula, a value is written and held for nothing, and what it is computed from is not kept instead.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.aot.backward_operands import memory_of
from lamina.aot.cost import classify
from lamina.base.torch_private import OpOverload

__all__ = ["without_unread_operands"]

aten = torch.ops.aten
_SIZES_ONLY: dict[OpOverload, int] = {
    aten.avg_pool2d_backward.default: 1,
    aten.avg_pool3d_backward.default: 1,
    aten._adaptive_avg_pool2d_backward.default: 1,
    aten._adaptive_avg_pool3d_backward.default: 1,
}
"""Operations of backwards, and the position of the operand of which they take sizes and strides."""
_AGAIN: dict[OpOverload, tuple[int, OpOverload]] = {
    aten.log_sigmoid_backward.default: (2, aten.log_sigmoid_forward.default),
}
"""The position of an operand that rules do not read, and the operation whose second result it is."""


def without_unread_operands(joint: GraphModule, forward_outputs: int) -> None:
    """Let formulas of the backward in ``joint`` have their unread operands from elsewhere than from the forward.

    What a user may see is left as it is: eager refuses a backward once it has been written to.
    """
    graph = joint.graph
    results = graph.output_node().args[0]
    seen = set(itertools.chain.from_iterable(map(memory_of, results[:forward_outputs])))  # type: ignore[index,arg-type]
    for node in list(graph.nodes):
        if node.target in _SIZES_ONLY:
            _give_sizes(node, _SIZES_ONLY[node.target], seen)
        elif node.target in _AGAIN:
            place, forward = _AGAIN[node.target]
            _give_again(node, place, forward)


def _give_sizes(node: Node, place: int, seen: set[Node]) -> None:
    operand = node.args[place]
    value = operand.meta.get("val") if isinstance(operand, Node) else None
    if not isinstance(operand, Node) or not isinstance(value, torch.Tensor) or operand in seen:
        return
    if operand.op != "call_function" or classify(operand).kind == "view" or not _has_numbers(value):
        return
    graph = node.graph
    with graph.inserting_before(node):
        keywords: Any = {"dtype": value.dtype, "device": value.device}
        layout: Any = (list(value.shape), list(value.stride()))
        made = graph.call_function(aten.empty_strided.default, layout, keywords)
    made.meta = {**node.meta, "val": value}
    node.update_arg(place, made)


def _give_again(node: Node, place: int, forward: OpOverload) -> None:
    given, operand = node.args[place], node.args[1]
    call = given.args[0] if isinstance(given, Node) and given.target is operator.getitem else None
    if not isinstance(given, Node) or not isinstance(call, Node) or call.target is not forward or given.args[1] != 1:
        return
    if call.args[0] is not operand:
        return
    graph = node.graph
    with graph.inserting_before(node):
        again = graph.call_function(forward, (operand,))
        made = graph.call_function(operator.getitem, (again, 1))
    again.meta, made.meta = {**node.meta, "val": call.meta["val"]}, {**node.meta, "val": given.meta["val"]}
    node.update_arg(place, made)


def _has_numbers(value: torch.Tensor) -> bool:
    return value.layout == torch.strided and all(type(n) is int for n in (*value.shape, *value.stride()))
