"""Calls by which torch computes a whole layer where no gradient is wanted, as a graph holds them: call by call.

``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` have such a way in evaluation. What it computes is what the
calls here compute, in the order of C++ (``native_multi_head_attention``, ``transformer_encoder_layer_forward``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
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


@dataclass(frozen=True, slots=True)
class _Projections:
    """How attention of ``heads`` heads projects a sequence of vectors of ``width`` numbers to queries, keys and values,
    all three with one matrix, and what it found back to vectors.
    """

    width: int
    heads: int
    weight: torch.Tensor
    bias: torch.Tensor
    out_weight: torch.Tensor
    out_bias: torch.Tensor


_OF_PROJECTIONS = len(fields(_Projections))
_UNSAID: tuple[Any, ...] = (None, True, True, None)
"""A mask, whether weights are wanted, whether as means over the heads, and the mask's kind, where a call says none."""


def _encoder_layer(call: Call, shape: tuple[int, ...], source: torch.Tensor, *given: Any) -> torch.Tensor:
    projections = _Projections(*given[:_OF_PROJECTIONS])
    gelu, norm_first, eps, *rest = given[_OF_PROJECTIONS:]
    norm_1, norm_2, linear_1, linear_2 = (rest[at : at + 2] for at in (0, 2, 4, 6))
    mask, kind = (*rest[8:], None, None)[:2]

    def norm(x: torch.Tensor, parameters: list[torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = call(F.layer_norm, x, (projections.width,), *parameters, eps)
        return found

    x = norm(source, norm_1) if norm_first else source
    x, _ = _attended(call, shape, x, projections, mask, kind)
    x = call(torch.add, x, source)
    before = x = x if norm_first else norm(x, norm_1)
    x = norm(x, norm_2) if norm_first else x
    x = call(F.gelu if gelu else F.relu, call(F.linear, x, *linear_1))
    x = call(torch.add, call(F.linear, x, *linear_2), before)
    return x if norm_first else norm(x, norm_2)


def _attention(call: Call, shape: tuple[int, ...], query: torch.Tensor, *given: Any) -> tuple[Any, ...]:
    after = 2 + _OF_PROJECTIONS  # and after keys and values: the module comes here where they are the query
    projections, rest = _Projections(*given[2:after]), given[after:]
    mask, weights, average, kind = (*rest, *_UNSAID[len(rest) :])
    found, of_heads = _attended(call, shape, query, projections, mask, kind, weights)
    if not weights:
        return found, None
    return found, call(torch.div, call(torch.sum, of_heads, 1), projections.heads) if average else of_heads


def _attended(
    call: Call,
    shape: tuple[int, ...],
    x: torch.Tensor,
    projections: _Projections,
    mask: torch.Tensor | None,
    kind: int | None,
    weights: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention of each place of ``x`` to all, and the weights of each head if they are wanted or there is a mask."""
    rows, length, _ = shape
    heads, of_head = projections.heads, projections.width // projections.heads
    joint = call(F.linear, x, projections.weight, projections.bias)
    projected = call(torch.Tensor.view, joint, rows, length, 3, heads, of_head)
    q, k, v = call(torch.unbind, call(torch.permute, projected, (2, 0, 3, 1, 4)))
    of_heads = None
    if mask is None and not weights:
        found = call(F.scaled_dot_product_attention, q, k, v)
    else:
        scaled = call(torch.div, q, math.sqrt(of_head))
        scores = call(torch.matmul, scaled, call(torch.transpose, k, -1, -2))
        if mask is not None:
            masked = call(torch.Tensor.to, mask, torch.bool)
            if kind in _SPREAD:
                masked = call(torch.Tensor.view, masked, *_SPREAD[kind](rows, length))
            scores = call(torch.masked_fill, scores, masked, -math.inf)
        of_heads = call(F.softmax, scores, -1)
        found = call(torch.matmul, of_heads, v)
    joined = call(torch.Tensor.reshape, call(torch.transpose, found, 1, 2), rows, length, projections.width)
    return call(F.linear, joined, projections.out_weight, projections.out_bias), of_heads
