"""Attention that asks its operands whether the library's kernel gives what the parts give, and computes those if not.

A mask is exact in the library where nothing behind it can be noticed: all operands are finite, no product of them
overflows, and a finite number in the place of masked scores is so far below the visible ones that the softmax of the
parts gives it the weight 0 too. By Cauchy and Schwarz a score is at most the longest query times the longest key: that
costs one read of the operands, next to nothing beside the products. What the parts do is told by ``steps``.

- ``lamina::checked_attention`` gives the result;
- ``lamina::checked_attention_forward`` gives the logarithms of the rows' sums as well, which the backward takes;
- ``lamina::checked_attention_backward`` gives the gradients of queries, keys and values.

``mask`` is what the library adds, ``tops`` the largest element of each of its rows as the program has it; ``others``
are the tensors that ``steps`` (see ``steps_text``) name by number; ``highest`` is the largest finite number that stands
for masked scores, minus infinity if none does.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.base.torch_private import cpu_attention, cpu_attention_backward

__all__ = ["VANISHED", "checked_attention", "checked_attention_backward", "checked_attention_forward", "steps_text"]

LOST = -1e8
"""A row whose mask is nowhere above this is taken to have lost its scores."""
VANISHED = 110.0
"""The exponential of minus this is 0 in float32, subnormal numbers included."""

_Steps = list[tuple[str, int, float, bool, str]]

_OPERANDS = "Tensor query, Tensor key, Tensor value"
_REST = "Tensor? mask, Tensor? tops, Tensor[] others, str steps, bool causal, float scale, float highest"


def steps_text(steps: Sequence[tuple[str, int, float, bool, torch.dtype]]) -> str:
    """What the parts do between the products: (kind, number of the tensor or -1, factor, inverted, dtype) of each.

    Kinds are "product", "scale", "add", "fill", "softmax" and "weights"; factor and inverted mean what they do in
    ``Step`` of the rule that writes them.
    """
    return json.dumps([(kind, place, factor, turned, str(dtype)[6:]) for kind, place, factor, turned, dtype in steps])


@functools.lru_cache(maxsize=256)
def _read(text: str) -> _Steps:
    return [tuple(step) for step in json.loads(text)]


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found


def _exact(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tops: Tensor | None,
    others: Sequence[Tensor],
    steps: _Steps,
    highest: float,
) -> bool:
    """Whether the library gives what the parts give."""
    if 0 in (*query.shape, *key.shape, *value.shape):
        return False
    bound = _longest(query) * _longest(key)
    fine = math.isfinite(float(value.sum(dtype=torch.float32)))
    for kind, place, factor, inverted, dtype in steps:
        if kind == "scale":
            by = factor if place < 0 else float(others[place].abs().amin() if inverted else others[place].abs().amax())
            bound = bound / by if place >= 0 and inverted and by else bound * abs(by)
        fine = fine and bound <= torch.finfo(_dtype(dtype)).max / 4  # and is a number
    if not fine:
        return False
    least = 0.0 if tops is None else float(tops.amin())
    if highest != -math.inf:
        single = sum(kind in ("add", "fill") for kind, *_ in steps) == 1
        if not (0.0 if single else least) - 2 * bound > highest + VANISHED:
            return False
    if tops is not None and least <= LOST and any(kind == "add" for kind, *_ in steps):
        eps = max(torch.finfo(_dtype(dtype)).eps for kind, *_, dtype in steps if kind == "add")
        lost = tops[(tops <= LOST) & (tops != -math.inf)]
        return lost.numel() == 0 or 2 * bound < -float(lost.amax()) * eps / 2
    return True


def _longest(rows: Tensor) -> float:
    return float(torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float32).amax())


def _weights(query: Tensor, key: Tensor, others: Sequence[Tensor], steps: _Steps) -> tuple[Tensor, Tensor]:
    """The softmax of the parts, and in the dtype in which it mixes the values."""
    scores = softmax = query
    for kind, place, factor, inverted, name in steps:
        dtype = _dtype(name)
        if kind == "product":
            scores = (query.to(dtype) @ key.to(dtype).transpose(-2, -1)) * factor
        elif kind == "scale":
            by: Any = factor if place < 0 else others[place]
            scores = scores / by if inverted else scores * by
        elif kind == "add":
            scores = scores + (others[place] if factor == 1 else others[place] * factor)
        elif kind == "fill":
            where = others[place].logical_not() if inverted else others[place]
            scores = scores.masked_fill(where, factor)
        elif kind == "softmax":
            scores = softmax = scores.softmax(-1, dtype)
        scores = scores.to(dtype)
    return softmax, scores


def _parts_backward(
    tangent: Tensor, query: Tensor, key: Tensor, value: Tensor, others: Sequence[Tensor], steps: _Steps
) -> tuple[Tensor, Tensor, Tensor]:
    softmax, weights = _weights(query, key, others, steps)
    values = weights.transpose(-2, -1) @ tangent
    flow = (tangent @ value.transpose(-2, -1)).to(softmax.dtype)
    flow = (flow - (flow * softmax).sum(-1, keepdim=True)) * softmax
    for kind, place, factor, inverted, name in reversed(steps):
        flow = flow.to(_dtype(name)) if kind not in ("softmax", "weights") else flow
        if kind == "scale":
            by: Any = factor if place < 0 else others[place]
            flow = flow / by if inverted else flow * by
        elif kind == "fill":
            flow = flow.masked_fill(others[place].logical_not() if inverted else others[place], 0.0)
        elif kind == "product":
            flow = flow * factor
    queries, keys = flow @ key.to(flow.dtype), flow.transpose(-2, -1) @ query.to(flow.dtype)
    return queries.to(query.dtype), keys.to(key.dtype), values


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaled: Tensor,
    mask: Tensor | None,
    tops: Tensor | None,
    others: list[Tensor],
    steps: str,
    causal: bool,
    scale: float,
    highest: float,
) -> Tensor:
    read = _read(steps)
    if _exact(query, key, value, tops, others, read, highest):
        found = F.scaled_dot_product_attention(scaled, key, value, mask, is_causal=causal, scale=scale)
    else:
        found = _weights(query, key, others, read)[1] @ value
    return _laid_out(found)


def _forward(
    query: Tensor, key: Tensor, value: Tensor, others: list[Tensor], steps: str, scale: float, highest: float
) -> tuple[Tensor, Tensor]:
    read = _read(steps)
    if _exact(query, key, value, None, others, read, highest):
        out, logarithm = cpu_attention(query, key, value, True, scale)
    else:
        out = _weights(query, key, others, read)[1] @ value
        logarithm = query.new_zeros(query.shape[:-1], dtype=torch.float32)
    return _laid_out(out), _laid_out(logarithm)


def _backward(
    tangent: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logarithm: Tensor,
    others: list[Tensor],
    steps: str,
    scale: float,
    highest: float,
) -> tuple[Tensor, Tensor, Tensor]:
    read = _read(steps)
    if _exact(query, key, value, None, others, read, highest):
        found = cpu_attention_backward(tangent, query, key, value, out, logarithm, True, scale)
    else:
        found = _parts_backward(tangent, query, key, value, others, read)
    first, second, third = map(_laid_out, found)
    return first, second, third


def _laid_out(tensor: Tensor) -> Tensor:
    """``tensor`` in the layout of the library's results: heads after queries."""
    wanted = _like(tensor, tensor.shape)
    return tensor if tensor.stride() == wanted.stride() else wanted.copy_(tensor)


def _like(tensor: Tensor, shape: Sequence[Any], dtype: torch.dtype | None = None) -> Tensor:
    batch, heads, *rest = shape
    return tensor.new_empty((batch, rest[0], heads, *rest[1:]), dtype=dtype or tensor.dtype).transpose(1, 2)


def _fake_attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
    return _like(value, (*query.shape[:-1], value.shape[-1]))


def _fake_forward(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _fake_attention(query, key, value), _like(query, query.shape[:-1], torch.float32)


def _fake_backward(
    tangent: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return _like(query, query.shape), _like(key, key.shape), _like(value, value.shape)


_OTHERS = "Tensor[] others, str steps, float scale, float highest"
for _name, _schema, _function, _fake in (
    (
        "checked_attention",
        f"({_OPERANDS}, Tensor scaled, {_REST}) -> Tensor",
        _attention,
        _fake_attention,
    ),
    ("checked_attention_forward", f"({_OPERANDS}, {_OTHERS}) -> (Tensor, Tensor)", _forward, _fake_forward),
    (
        "checked_attention_backward",
        f"(Tensor tangent, {_OPERANDS}, Tensor out, Tensor logarithm, {_OTHERS}) -> (Tensor, Tensor, Tensor)",
        _backward,
        _fake_backward,
    ),
):
    torch.library.define(f"lamina::{_name}", _schema)
    torch.library.impl(f"lamina::{_name}", "default", _function)
    torch.library.register_fake(f"lamina::{_name}", _fake)

checked_attention: Any = torch.ops.lamina.checked_attention.default
checked_attention_forward: Any = torch.ops.lamina.checked_attention_forward.default
checked_attention_backward: Any = torch.ops.lamina.checked_attention_backward.default
