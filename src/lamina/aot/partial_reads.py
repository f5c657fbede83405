"""Values that backwards of some results compute again from what eager saves for others only.

``return x.sin(), torch.where(x > 0, y, 0)``: eager saves ``x`` for the sine, and the comparison for the second result.
Computed again from ``x``, as that is saved anyway, the comparison is lost once the user has written to ``x``: a
backward of the second result alone would raise, where eager's does not read ``x``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch.fx import Node

from lamina.aot.backward_operands import elements_read
from lamina.aot.cost import OpClass

__all__ = ["read_apart"]


def read_apart(
    nodes: Sequence[Node],
    tangents: Sequence[Node],
    visible: Collection[Node],
    kinds: Mapping[Node, OpClass],
    in_forward: Callable[[Node], bool],
) -> set[Node]:
    """Values of the forward that are not to be computed again, as a gradient reads them that asks for nothing else.

    ``visible`` are inputs and results that the user may write to later, and that are saved as they are.
    """
    if len(tangents) < 2:
        return set()
    numbers = {tangent: 1 << place for place, tangent in enumerate(tangents)}
    depending: dict[Node, int] = {}
    for node in nodes:
        depending[node] = numbers.get(node, 0)
        for operand in node.all_input_nodes:
            depending[node] |= depending[operand]
    asking = _asking(nodes, depending, kinds, in_forward)
    every = (1 << len(tangents)) - 1
    found: set[Node] = set()
    shared: dict[Node, int] = {}
    """The gradients that ask for all that is visible and that a value of the forward is computed from."""
    for node in nodes:
        above = every
        for operand in node.all_input_nodes:
            above &= shared[operand]
        asked = asking.get(node, 0)
        made = node.op != "placeholder" and in_forward(node) and kinds[node].kind != "view"
        if made and asked & ~above and isinstance(node.meta.get("val"), torch.Tensor):
            found.add(node)
            above = every
        shared[node] = above & asked if node in visible and asked else above
    return found


def _asking(
    nodes: Sequence[Node],
    depending: Mapping[Node, int],
    kinds: Mapping[Node, OpClass],
    in_forward: Callable[[Node], bool],
) -> dict[Node, int]:
    """For each value of the forward which gradients read it, or a view of it, in a formula."""
    asking: dict[Node, int] = {}
    for node in reversed(nodes):
        if node.op == "placeholder":
            continue
        if not in_forward(node):
            asked = depending[node] or asking.get(node, 0)
        elif kinds[node].kind == "view":
            asked = asking.get(node, 0)
        else:
            continue
        for operand in elements_read(node):
            asking[operand] = asking.get(operand, 0) | asked
    return asking
