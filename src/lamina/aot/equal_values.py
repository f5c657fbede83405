"""Values that a backward compares with what a reduction made of them, to find the elements that its result came from.

The gradient of a maximum goes to the elements that equal it, divided by their number. An element that is computed again
may be rounded in another way than in the forward: then none equals the maximum, and the gradient is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.fx import Node

from lamina.aot.cost import OpClass
from lamina.ops import overloads

__all__ = ["compared_values"]

aten = torch.ops.aten

_EQUAL = (aten.eq.Tensor, aten.ne.Tensor)
_EXACT = overloads(lambda row: row.exact)
"""What rounds nothing and lets the largest of rounded values be the rounded largest."""


def compared_values(nodes: Sequence[Node], kinds: Mapping[Node, OpClass]) -> set[Node]:
    """Floating-point values that are compared for equality with the result of a reduction, or with what it is seen as.

    A value that is an exact function of another, as an absolute value, stands for that one.
    """
    found: set[Node] = set()
    for node in nodes:
        if node.op != "call_function" or node.target not in _EQUAL or len(node.all_input_nodes) != 2:
            continue
        sides = [_origin(n, kinds) for n in node.all_input_nodes]
        if not all(_is_floating(side) for side in sides):
            continue
        for one, other in (sides, sides[::-1]):
            if one.op != "placeholder" and kinds[one].kind == "reduction":
                found.add(_exact(other, kinds))
    return found


def _origin(node: Node, kinds: Mapping[Node, OpClass]) -> Node:
    """What ``node`` is a view of, or the operation that it is one result of."""
    while node.op == "call_function" and kinds[node].kind == "view" and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _exact(node: Node, kinds: Mapping[Node, OpClass]) -> Node:
    """What ``node`` is an exact function of."""
    while node.op == "call_function" and node.target in _EXACT:
        node = _origin(node.all_input_nodes[0], kinds)
    return node


def _is_floating(node: Node) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    return any(isinstance(v, Tensor) and v.is_floating_point() for v in values)
