"""Which inputs backward formulas ask for, as eager saves them: known of the joint graph before passes change it.

The gradient of a quotient asks for both operands, and the quotient that it makes of them is soon merged with the
forward's own. Then nothing of the backward reads the dividend, and yet eager holds it: it may be saved as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import GraphModule, Node

from lamina.aot.cost import classify

__all__ = ["ancestors", "is_backward_operand", "mark_backward_operands"]

_OPERAND = "read_by_backward"


def mark_backward_operands(joint: GraphModule, forward_outputs: int) -> None:
    """Note in ``meta`` which inputs, themselves or through views, formulas of the backward read."""
    results = list(joint.graph.output_node().args[0])  # type: ignore[arg-type]
    forward = ancestors([n for n in results[:forward_outputs] if isinstance(n, Node)])
    backward = ancestors([n for n in results[forward_outputs:] if isinstance(n, Node)])
    operands: set[Node] = set()
    for node in reversed(joint.graph.nodes):
        if node.op != "call_function" or node not in backward:
            if node.op == "placeholder" and node in operands:
                node.meta[_OPERAND] = True
        elif node not in forward or (node in operands and classify(node).kind == "view"):
            operands.update(node.all_input_nodes)


def is_backward_operand(node: Node) -> bool:
    """Whether ``mark_backward_operands`` found that a formula reads this input."""
    return node.meta.get(_OPERAND, False) is True


def ancestors(roots: Iterable[Node]) -> set[Node]:
    """``roots`` and everything they are computed from."""
    seen = set(roots)
    stack = list(seen)
    while stack:
        for node in stack.pop().all_input_nodes:
            if node not in seen:
                seen.add(node)
                stack.append(node)
    return seen
