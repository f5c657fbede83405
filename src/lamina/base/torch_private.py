"""What torch (2.11 to 2.13) has under private names only: the classes of operators, and the CPU's flash attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

__all__ = ["HigherOrderOperator", "OpOverload", "OpOverloadPacket", "cpu_attention", "cpu_attention_backward"]

aten = torch.ops.aten


def cpu_attention(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """The result, and the logarithm of the sum of each row's exponentials."""
    found = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, scale=scale)
    return found[0], found[1]


def cpu_attention_backward(
    tangent: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logarithm: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values."""
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    found = backward(tangent, query, key, value, out, logarithm, 0.0, causal, scale=scale)
    return found[0], found[1], found[2]
