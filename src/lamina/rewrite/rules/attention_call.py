"""The library's attention as a graph calls it: which functions, and their arguments by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

__all__ = ["DEFAULTS", "LIBRARY", "OPERANDS", "arguments_of"]

LIBRARY = (F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default)
OPERANDS = ("query", "key", "value")
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}
)


def arguments_of(node: Node) -> dict[str, Any] | None:
    """All arguments of a call of the library, in its order; None where one is missing, or is none that is known."""
    names = (*OPERANDS, *DEFAULTS)
    given = {**DEFAULTS, **dict(zip(names, node.args, strict=False)), **node.kwargs}
    return {name: given[name] for name in names} if given.keys() == set(names) else None
