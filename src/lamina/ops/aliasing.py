"""Which operations give a view of an operand."""

from __future__ import annotations

import functools
import operator
from typing import Any

from torch.fx import Node

from lamina.base.torch_private import OpOverload, returns_arguments
from lamina.ops.row import VIEW
from lamina.ops.table import row_of

__all__ = ["makes_view", "viewed"]


@functools.lru_cache(maxsize=4096)
def makes_view(target: Any) -> bool:
    """Whether what a call of ``target`` returns may share memory with an operand; so it is taken of non-operators."""
    if not isinstance(target, OpOverload):
        return True
    row = row_of(target)
    known = row is not None and (row.kind == VIEW or row.shares)
    return known or returns_arguments(target)


def viewed(node: Node) -> Node:
    """The node whose memory views, by their schemas, make ``node`` of; ``node`` itself if it is no view."""
    while isinstance(node.target, OpOverload) or node.target is operator.getitem:
        call = node.args[0] if node.target is operator.getitem else node
        if not (isinstance(call, Node) and isinstance(call.target, OpOverload) and call.args):
            break
        base = call.args[0]
        if not isinstance(base, Node) or not returns_arguments(call.target):
            break
        node = base
    return node
