"""Captured batch norms: their arguments by name, and the running statistics that they write."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from lamina.base.source import operation_name

__all__ = ["arguments_of_norm", "is_norm", "statistics_written"]

_OF_FUNCTIONAL = ("input", "running_mean", "running_var", "weight", "bias", "training")
_OF_TORCH = ("input", "weight", "bias", "running_mean", "running_var", "training")
"""The first arguments of ``torch.nn.functional.batch_norm`` and of ``torch.batch_norm``."""


def is_norm(node: Node) -> bool:
    """Whether a captured call is a batch norm."""
    return node.op == "call_function" and operation_name(node.target) == "batch_norm"


def arguments_of_norm(node: Node) -> dict[str, Any]:
    """The arguments of a batch norm by their names, as far as they are given and decide what it reads and writes."""
    names = _OF_FUNCTIONAL if hasattr(node.target, "__code__") else _OF_TORCH
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def statistics_written(node: Node) -> list[Node]:
    """The running statistics that a captured call writes, before it reads some of its operands: a norm in training."""
    given = arguments_of_norm(node) if is_norm(node) else {}
    if not given.get("training", False):
        return []
    return [one for one in (given.get("running_mean"), given.get("running_var")) if isinstance(one, Node)]
