"""Calls by which torch computes a whole layer where no gradient is wanted, as a graph holds them: call by call.

``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` have such a way in evaluation. What it computes is what the
calls here compute, in the order of C++ (``native_multi_head_attention``, ``transformer_encoder_layer_forward``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from lamina.capture.own.torch_private import LAYERS, autocast_states

__all__ = ["layer_of"]

Call = Callable[..., Any]
"""Records a call of a function of torch's with the arguments that follow."""
_DTYPES = (torch.float32, torch.float64)
_SPREAD: dict[int | None, Callable[[int, int], tuple[int, ...]]] = {
    0: lambda rows, length: (1, 1, length, length),
    1: lambda rows, length: (rows, 1, 1, length),
}
"""How masks stand before scores, by their kinds: of pairs of places; of places, for each sequence."""


def layer_of(function: Any, args: tuple[Any, ...], looks: tuple[Any, ...]) -> Callable[[Call], Any] | None:
    """What makes the calls of a layer by a ``Call``; None where ``function`` computes no layer, or not so.

    ``looks`` are the arguments with what stands for tensors that are not computed yet.
    """
    layer = LAYERS.get(function)
    if layer is None or any(enabled for _, enabled, _ in autocast_states()[:2]):
        return None
    tensors = [given for given in looks if isinstance(given, torch.Tensor)]
    source = tensors[0]
    usual = source.dim() == 3 and source.dtype in _DTYPES and source.numel() > 0
    if not usual or any(tensor.dtype not in (source.dtype, torch.bool) or tensor.is_nested for tensor in tensors):
        return None
    made = _encoder_layer if layer == "encoder layer" else _attention
    return lambda call: made(call, tuple(source.shape), *args)


def _encoder_layer(
    call: Call,
    shape: tuple[int, ...],
    source: torch.Tensor,
    width: int,
    heads: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    gelu: bool,
    norm_first: bool,
    eps: float,
    *rest: Any,
) -> torch.Tensor:
    norm_1, norm_2, linear_1, linear_2 = (rest[at : at + 2] for at in (0, 2, 4, 6))
    mask, kind = (*rest[8:], None, None)[:2]

    def norm(x: torch.Tensor, parameters: tuple[torch.Tensor, ...]) -> torch.Tensor:
        found: torch.Tensor = call(F.layer_norm, x, (width,), *parameters, eps)
        return found

    x = norm(source, norm_1) if norm_first else source
    x, _ = _attended(call, shape, x, width, heads, weight, bias, out_weight, out_bias, mask, kind)
    x = call(torch.add, x, source)
    before = x = x if norm_first else norm(x, norm_1)
    x = norm(x, norm_2) if norm_first else x
    x = call(F.gelu if gelu else F.relu, call(F.linear, x, *linear_1))
    x = call(torch.add, call(F.linear, x, *linear_2), before)
    return x if norm_first else norm(x, norm_2)


def _attention(
    call: Call,
    shape: tuple[int, ...],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    width: int,
    heads: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    mask: torch.Tensor | None,
    weights: bool,
    average: bool,
    kind: int | None,
) -> tuple[Any, ...]:
    del key, value  # the module comes here where they are the query
    given = (query, width, heads, weight, bias, out_weight, out_bias, mask, kind, weights)
    found, of_heads = _attended(call, shape, *given)
    if not weights:
        return found, None
    return found, call(torch.div, call(torch.sum, of_heads, 1), heads) if average else of_heads


def _attended(
    call: Call,
    shape: tuple[int, ...],
    x: torch.Tensor,
    width: int,
    heads: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    mask: torch.Tensor | None,
    kind: int | None,
    weights: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention of each place of ``x`` to all, and the weights of each head if they are wanted or there is a mask."""
    rows, length, _ = shape
    projected = call(torch.Tensor.view, call(F.linear, x, weight, bias), rows, length, 3, heads, width // heads)
    q, k, v = call(torch.unbind, call(torch.permute, projected, (2, 0, 3, 1, 4)))
    of_heads = None
    if mask is None and not weights:
        found = call(F.scaled_dot_product_attention, q, k, v)
    else:
        scaled = call(torch.div, q, math.sqrt(width // heads))
        scores = call(torch.matmul, scaled, call(torch.transpose, k, -1, -2))
        if mask is not None:
            masked = call(torch.Tensor.to, mask, torch.bool)
            if kind in _SPREAD:
                masked = call(torch.Tensor.view, masked, *_SPREAD[kind](rows, length))
            scores = call(torch.masked_fill, scores, masked, -math.inf)
        of_heads = call(F.softmax, scores, -1)
        found = call(torch.matmul, of_heads, v)
    joined = call(torch.Tensor.reshape, call(torch.transpose, found, 1, 2), rows, length, width)
    return call(F.linear, joined, out_weight, out_bias), of_heads
