"""Calls that give their operand's values again: comparison looks through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from lamina.rewrite.arguments import argument
from lamina.rewrite.terms import is_tensor
from lamina.rewrite.torch_private import same_size

__all__ = ["resolve"]

aten = torch.ops.aten


def resolve(node: Node) -> tuple[Node, tuple[Node, ...]]:
    """The first node that is more than its operand's values again, and the nodes passed on the way."""
    passed: tuple[Node, ...] = ()
    while node.op == "call_function" and node.target in _TRANSPARENT and _TRANSPARENT[node.target](node):
        passed = (*passed, node)
        node = node.args[0]  # type: ignore[assignment]
    return node, passed


def _always(node: Node) -> bool:
    return True


def _switched_off(node: Node) -> bool:
    return not argument(node, 2, "train", True) or argument(node, 1, "p") == 0


def _same_type(node: Node) -> bool:
    source = node.args[0]
    return is_tensor(source) and source.meta["val"].dtype == node.meta["val"].dtype  # type: ignore[union-attr]


def _by_one(node: Node) -> bool:
    factor = node.args[1]
    return isinstance(factor, (int, float)) and not isinstance(factor, bool) and factor == 1 and _same_type(node)


def _same_shape(node: Node) -> bool:
    source = node.args[0]
    if not is_tensor(source):
        return False
    old, new = source.meta["val"].shape, node.meta["val"].shape  # type: ignore[union-attr]
    return len(old) == len(new) and all(same_size(a, b) for a, b in zip(old, new, strict=True))


_TRANSPARENT: dict[Any, Callable[[Node], bool]] = {
    aten.dropout.default: _switched_off,
    aten.contiguous.default: _always,
    aten.clone.default: _always,
    aten.alias.default: _always,
    aten.mul.Tensor: _by_one,
    aten.div.Tensor: _by_one,
    aten.expand.default: _same_shape,
    aten.view.default: _same_shape,
    aten.reshape.default: _same_shape,
}
"""Calls that give their operand's values again, and when they do."""
