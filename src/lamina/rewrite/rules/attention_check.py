"""Attention by hand as the library's where its operands, asked at each call, let nobody notice (on a CPU).

Eager multiplies the weight 0 of a masked key with its value, which is not a number where that is infinite, and lets
a masked number compete with scores that are as low: the library skips what is masked. ``lamina::checked_attention``
(``checked_attention.py``) takes what the program does between its products along, for calls where that shows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from lamina.base.devices import kind_of
from lamina.rewrite.rules.attention_form import Attention, Refusal
from lamina.rewrite.rules.attention_mask import Mask
from lamina.rewrite.rules.checked_attention import (
    VANISHED,
    checked_attention,
    checked_attention_backward,
    checked_attention_forward,
    steps_text,
)
from lamina.rewrite.rules.editing import Writer
from lamina.rewrite.rules.spelling import fake_of

__all__ = ["checked_on_cpu", "differentiable_attention", "guarded", "on_cpu"]


def on_cpu(device: torch.device) -> bool:
    """Whether kernels there may be asked about their operands for nothing."""
    return kind_of(device).host


def checked_on_cpu(
    write: Writer,
    found: Attention,
    mask: Mask,
    operands: tuple[Node, Node, Node, Node, Node],
    added: Node | None,
    tops: Node | None,
    training: bool,
) -> Node:
    """The call, on ``operands``: queries as they are, scaled, without those of lost rows, keys and values."""
    raw, scaled, queries, key, value = operands
    others: list[Node] = []
    steps: list[tuple[str, int, float, bool, torch.dtype]] = []
    steps.append(("product", -1, found.scores.scale, False, _dtype(found.first)))
    for part in mask.replay:
        step = part.step
        if step.value is not None and training and step.kind == "scale":
            continue  # the queries are scaled before
        place = -1
        if step.value is not None:
            place = len(others)
            others.append(part.tensor(write))
        steps.append((step.kind, place, step.factor, step.inverted, step.dtype))
    steps.append(("softmax", -1, 1.0, False, _dtype(found.softmax)))
    steps.append(("weights", -1, 1.0, False, _dtype(found.weights)))
    text = steps_text(steps)
    if training:
        given = (scaled, key, value, text, mask.scale, mask.highest, *others)
        return write.call(differentiable_attention, *given)
    given = (raw, key, value, queries, added, tops, others, text, mask.causal, mask.scale, mask.highest)
    return write.call(checked_attention, *given)


def guarded(write: Writer, result: Node, mask: Mask, operands: tuple[Node, Node, Node]) -> Node:
    """``result`` where the operands of its batch and head let nobody notice a mask, and NaN elsewhere (on a GPU).

    A mask that is added is added in the library as well: of that there is nothing to notice.
    """
    if not mask.causal and all(part.step.kind != "fill" for part in mask.parts):
        return result
    query, key, value = operands
    longest = [
        write.call(torch.amax, write.call(torch.linalg.vector_norm, one, dim=-1, dtype=torch.float32), -1, True)
        for one in (query, key)
    ]
    bound = write.call(torch.mul, write.call(torch.mul, *longest), abs(mask.scale))
    limit = min(float(torch.finfo(_dtype(result)).max) / 4, (-mask.highest - VANISHED) / 2)
    largest = write.call(torch.amax, write.call(torch.abs, value), (-2, -1))
    fine = write.call(torch.le, bound, limit)
    fine = write.call(torch.logical_and, fine, write.call(torch.isfinite, write.call(torch.unsqueeze, largest, -1)))
    factor = write.call(torch.where, write.call(torch.unsqueeze, fine, -1), 1.0, math.nan)
    return write.call(torch.mul, result, write.method("to", factor, _dtype(result)))


def differentiable_attention(
    query: Tensor, key: Tensor, value: Tensor, steps: str, scale: float, highest: float, *others: Tensor
) -> Tensor:
    """Causal attention with a gradient, checked forward and backward."""
    return _Checked.apply(query, key, value, steps, scale, highest, *others)  # type: ignore[no-any-return, no-untyped-call]


class _Checked(torch.autograd.Function):
    """The same, differentiated."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, steps: str, scale: float, highest: float, *others: Tensor
    ) -> Tensor:
        out, logarithm = checked_attention_forward(query, key, value, list(others), steps, scale, highest)
        ctx.steps, ctx.scale, ctx.highest = steps, scale, highest
        ctx.save_for_backward(query, key, value, out, logarithm, *others)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> tuple[Any, ...]:
        query, key, value, out, logarithm, *others = ctx.saved_tensors
        operands = (query, key, value, out, logarithm, others)
        found = checked_attention_backward(tangents[0], *operands, ctx.steps, ctx.scale, ctx.highest)
        return (*found, None, None, None, *(None for _ in others))


def _dtype(node: Node) -> torch.dtype:
    value = fake_of(node)
    if value is None:
        raise Refusal("a product of no known dtype")
    return value.dtype
