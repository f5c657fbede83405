"""Which captured calls may draw random numbers: running them again would draw others."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.base.captured import argument
from lamina.base.drawing import may_draw
from lamina.base.source import operation_name
from lamina.base.torch_private import OpOverload

__all__ = ["draws_numbers"]

_DROPOUT = {"scaled_dot_product_attention": 4}
"""Builtin functions that draw only where they are given a probability, with its position."""

_KNOWN = ("torch", "builtins", "math", "operator", "_operator")
"""Packages whose functions draw as their names say."""


def draws_numbers(gm: GraphModule) -> bool:
    """Whether a captured graph, or one that it holds, may draw random numbers.

    What a call does is asked of its target: the name of a node is that of the variable which the user assigned it to.
    """
    return any(_draws(gm, node) for node in gm.graph.nodes)


def _draws(gm: GraphModule, node: Node) -> bool:
    if node.op == "get_attr":
        held = getattr(gm, str(node.target), None)
        return isinstance(held, GraphModule) and draws_numbers(held)
    if node.op not in ("call_function", "call_method"):
        return node.op == "call_module"
    target = node.target
    if isinstance(target, OpOverload):
        return torch.Tag.nondeterministic_seeded in target.tags
    if node.op == "call_function" and str(getattr(target, "__module__", None)).split(".")[0] not in _KNOWN:
        return True
    name = operation_name(target)
    return may_draw(name) and not _is_told_not_to(node, name)


def _is_told_not_to(node: Node, name: str) -> bool:
    """Whether a call's arguments say that it draws nothing: no probability, or not in training."""
    place = _DROPOUT.get(name)
    if place is not None:
        probability = node.args[place] if len(node.args) > place else node.kwargs.get("dropout_p", 0.0)
        return _is_zero(argument(probability))
    try:
        given = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a method, or a builtin function without a signature
        return False
    given.apply_defaults()
    values = given.arguments
    return values.get("training", True) is False or _is_zero(argument(values.get("dropout_p", 1.0)))


def _is_zero(value: Any) -> bool:
    return isinstance(value, (int, float)) and value == 0
