"""Operands of backward formulas, which eager saves: inputs and results marked in the joint graph before passes run.

The gradient of a quotient asks for both operands, and the quotient that it makes of them is soon merged with the
forward's own. Then nothing of the backward reads the dividend, and yet eager holds it: it may be saved as it is.
``silu(x.clone())`` asks for the clone; a pass makes that ``x`` itself, which the user may write to as eager lets them.
A softmax that a rule has put in the place of a quotient asks for its result, and the quotient's gradient does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from lamina.aot.cost import classify
from lamina.base.captured import unsaved_result
from lamina.base.fx.copying import needed_by
from lamina.base.torch_private import OpOverload
from lamina.ops import row_of
from lamina.ops.row import CREATION, NUMBER

__all__ = ["are_backward_operands", "elements_read", "is_backward_operand", "mark_backward_operands", "memory_of"]

_OPERAND = "read_by_backward"


def mark_backward_operands(joint: GraphModule, forward_outputs: int) -> None:
    """Note in ``meta`` which inputs, and results of the forward, formulas of the backward read: or views of them."""
    output = joint.graph.output_node()
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    forward = needed_by([n for n in results[:forward_outputs] if isinstance(n, Node)])
    backward = needed_by([n for n in results[forward_outputs:] if isinstance(n, Node)])
    operands: set[Node] = set()
    for node in reversed(joint.graph.nodes):
        if node.op == "placeholder":
            node.meta[_OPERAND] = node in operands
        elif (node in backward and node not in forward) or (node in operands and _is_view(node)):
            operands.update(elements_read(node))
    formulas = backward - forward
    operands -= {n for n in forward if unsaved_result(n) and not _read_by_others(n, n, formulas)}
    read = [not operands.isdisjoint(memory_of(n)) for n in results[:forward_outputs]]
    output.meta[_OPERAND] = tuple(read)


def _read_by_others(view: Node, node: Node, formulas: set[Node]) -> bool:
    """Whether ``formulas`` of the backward read a view of ``node``, besides those of the call that gave it."""
    for user in view.users:
        if user.op == "call_function" and _is_view(user):
            if _read_by_others(user, node, formulas):
                return True
        elif user in formulas and unsaved_result(user) != unsaved_result(node):
            return True
    return False


def elements_read(node: Node) -> list[Node]:
    """The operands of a call that are more to it than their sizes, dtype and device, as ``zeros_like`` asks for."""
    row = row_of(node.target) if isinstance(node.target, OpOverload) else None
    made_of_sizes = row is not None and row.kind in (CREATION, NUMBER) and not row.reason
    return [] if made_of_sizes else node.all_input_nodes


def is_backward_operand(node: Node) -> bool:
    """Whether ``mark_backward_operands`` found that a formula reads this input."""
    return node.meta.get(_OPERAND, False) is True


def are_backward_operands(inputs: Sequence[Node], output: Node) -> dict[Node, bool]:
    """Whether a formula reads inputs and results that ``mark_backward_operands`` saw, and what they are views of."""
    found: dict[Node, bool] = {}
    for result, read in zip(output.args[0], output.meta.get(_OPERAND, ()), strict=False):  # type: ignore[arg-type]
        for node in memory_of(result):
            found[node] = read or found.get(node, False)
    return found | {node: node.meta[_OPERAND] for node in inputs if _OPERAND in node.meta}


def memory_of(value: Any) -> Iterator[Node]:
    """A node and what it is a view of; nothing for another thing that a graph may give."""
    while isinstance(value, Node):
        yield value
        value = value.all_input_nodes[0] if _is_view(value) else None


def _is_view(node: Node) -> bool:
    return node.op == "call_function" and bool(node.all_input_nodes) and classify(node).kind == "view"
