"""Dropout that drops nothing, switched off or of probability 0: in eager it returns the very tensor it is given."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.fx.torch_private import graph_module
from lamina.base.operands import with_operands
from lamina.base.source import source_of
from lamina.base.symbolic.torch_private import is_sure
from lamina.rewrite.reasons import PASS_CHANGED

__all__ = ["without_dropout"]

_TRAINING_BY_DEFAULT: Mapping[Any, bool | None] = MappingProxyType(
    {F.dropout: True, torch.dropout: None, F.alpha_dropout: False, torch.alpha_dropout: None}
)
"""The functions that drop elements, and their default of ``training`` (or ``train``); None where there is none."""


def without_dropout(gm: GraphModule, decisions: list[Decision]) -> GraphModule:
    """``gm`` with the operand in the place of each such call; ``gm`` itself if there is none."""
    idle = {n: _argument(n, 0, "input", None) for n in gm.graph.nodes if n.op == "call_function" and _drops_nothing(n)}
    for node in idle:
        decisions.append(
            Decision("rewrite", ("without_dropout", source_of(node)), True, PASS_CHANGED(what="nothing is dropped"))
        )
    return graph_module(gm, with_operands(gm, idle)) if idle else gm


def _drops_nothing(node: Node) -> bool:
    if node.target not in _TRAINING_BY_DEFAULT or not isinstance(_argument(node, 0, "input", None), Node):
        return False
    name = "train" if node.target in (torch.dropout, torch.alpha_dropout) else "training"
    training = _argument(node, 2, name, _TRAINING_BY_DEFAULT[node.target])
    p = _argument(node, 1, "p", 0.5)
    if training is True and _is_empty(node):
        return True
    return training is False or (type(p) in (int, float) and p == 0 and training is True)


def _is_empty(node: Node) -> bool:
    """Whether there is no element; what run-time sizes say of it is guarded."""
    operand = _argument(node, 0, "input", None)
    value = operand.meta.get("example_value", operand.meta.get("val"))
    return isinstance(value, torch.Tensor) and any(is_sure(size == 0) for size in value.shape)


def _argument(node: Node, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)
