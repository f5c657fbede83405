"""The library's attention with a mask as it is, where rows may be masked by large negative numbers.

Otherwise such rows need another mask, and for their gradients other queries (``attention_mask.py``): copies of both.
Here the library gets the tensors themselves, and what it computes of masked rows is put right in its own results
(``masked_rows/operations.py``): of the forward's result and logarithms, and of the values' gradient. Of a masked row
nothing flows back to queries and keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lamina.base.devices import CUDNN, kind_of
from lamina.masked_rows.operations import fill_masked_rows, fill_masked_rows_backward, fill_masked_rows_forward
from lamina.rewrite.rules.torch_private import attention_backward, attention_forward, chosen_attention

__all__ = ["kernel_for", "masked_attention"]


def kernel_for(query: Tensor, key: Tensor, value: Tensor, scale: float) -> str:
    """The library's kernel that ``masked_attention`` is to call; "" where none can be relied on for these operands.

    That is cuDNN's, in bfloat16: float16 does not hold the masks, and its sum of one with a score keeps the score. One
    query is better served by its parts (``attention_one_query.py``).
    """
    sizes = [n for t in (query, key, value) for n in t.shape]
    if not kind_of(query).has(CUDNN) or query.dtype != torch.bfloat16 or any(type(n) is not int for n in sizes):
        return ""
    if query.shape[-2] == 1:
        return ""
    return chosen_attention(query, key, value, scale)


def masked_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, kernel: str) -> Tensor:
    """``softmax(query @ key^T * scale + mask) @ value`` by ``kernel``; a masked row's weights are those of its mask."""
    mask = mask[(None,) * (4 - mask.dim())]
    if torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value)):
        return _Masked.apply(query, key, value, mask, scale, kernel)  # type: ignore[no-any-return, no-untyped-call]
    out, *_ = attention_forward(kernel, query, key, value, mask, scale, False)
    return fill_masked_rows(out, mask, value)  # type: ignore[no-any-return]


class _Masked(torch.autograd.Function):
    """The same, with a gradient."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, kernel: str) -> Tensor:
        out, logarithm, *rest = attention_forward(kernel, query, key, value, mask, scale, True)
        out, logarithm, rows = fill_masked_rows_forward(out, logarithm, mask, value)
        ctx.scale, ctx.kernel = scale, kernel
        ctx.others = [None if isinstance(r, Tensor) else r for r in rest]
        tensors = [r if isinstance(r, Tensor) else None for r in rest]
        ctx.save_for_backward(query, key, value, mask, out, logarithm, rows, *tensors)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> tuple[Any, ...]:
        (tangent,) = tangents
        query, key, value, mask, out, logarithm, rows, *tensors = ctx.saved_tensors
        rest = [o if t is None else t for t, o in zip(tensors, ctx.others, strict=True)]
        operands = (query, key, value, mask)
        dq, dk, dv = attention_backward(ctx.kernel, tangent, operands, (out, logarithm, *rest), ctx.scale)
        return dq, dk, fill_masked_rows_backward(dv, mask, rows, tangent), None, None, None
