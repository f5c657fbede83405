"""The library's attention kernels by name, forward and backward, as torch 2.11 to 2.13 have them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["CPU", "CUDNN", "attention_backward", "attention_forward", "chosen_attention", "shares_heads"]

CUDNN, CPU = "cudnn", "cpu"
_CUDNN_CHOICE = 3  # SDPBackend.CUDNN_ATTENTION
_FUSED_CHOICES = (1, 2, _CUDNN_CHOICE)  # and those of flash and efficient attention

aten = torch.ops.aten


def chosen_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> str:
    """``CUDNN`` where ``scaled_dot_product_attention`` would call cuDNN's kernel for such tensors and a mask; else "".

    Of fake tensors the library does not say what it would choose: it is asked about real ones, for a moment.
    """
    try:
        with _disable_current_modes(), torch.no_grad():
            q, k, v = (_real(t).requires_grad_(t.requires_grad) for t in (query, key, value))
            choice = torch._fused_sdp_choice(q, k, v, q.new_empty(q.shape[-2], k.shape[-2]), 0.0, False, scale=scale)
    except torch.cuda.OutOfMemoryError:
        return ""
    return CUDNN if choice == _CUDNN_CHOICE else ""


def shares_heads(query: Tensor, key: Tensor, value: Tensor, dropout: float, causal: bool) -> bool:
    """Whether a kernel that keeps no scores takes these, which have fewer heads of keys and values than of queries."""
    training = torch.is_grad_enabled()  # a node inside a graph may not say whether it requires a gradient
    try:
        with _disable_current_modes():
            q, k, v = (_real(t).requires_grad_(training) for t in (query, key, value))
            choice = torch._fused_sdp_choice(q, k, v, None, dropout, causal, enable_gqa=True)
    except RuntimeError:  # no memory, or no kernel at all where the user has taken some out
        return False
    return choice in _FUSED_CHOICES


def _real(fake: Tensor) -> Tensor:
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)


def attention_forward(
    kernel: str, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, training: bool
) -> tuple[Any, ...]:
    """The result; for training also the logarithms of the rows' sums, and what else the backward takes."""
    if kernel == CPU:
        found = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=mask, scale=scale)
        return tuple(found)
    found = aten._scaled_dot_product_cudnn_attention(query, key, value, mask, training, 0.0, False, False, scale=scale)
    return tuple(found[:8])


def attention_backward(
    kernel: str,
    tangent: Tensor,
    operands: tuple[Tensor, Tensor, Tensor, Tensor],
    forward: tuple[Any, ...],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values, with ``forward`` as ``attention_forward`` gave it."""
    query, key, value, mask = operands
    out, logarithm, *rest = forward
    given = (tangent, query, key, value, out, logarithm)
    if kernel == CPU:
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return backward(*given, 0.0, False, attn_mask=mask, scale=scale)  # type: ignore[no-any-return]
    cum_seq_q, cum_seq_k, max_q, max_k, seed, offset = rest
    return aten._scaled_dot_product_cudnn_attention_backward(  # type: ignore[no-any-return]
        *given, seed, offset, mask, cum_seq_q, cum_seq_k, max_q, max_k, 0.0, False, scale=scale
    )
