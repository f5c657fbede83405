"""Attention's rows whose keys are all masked, made right after the library has computed all the others.

The library's kernels give zero for a row of minus infinity, where eager gives what is not a number. Of a row of large
negative numbers they store a logarithm of the sum in which nothing of the scores is left, so that its gradient is off
by the number of keys. Such rows are told by the mask alone, and so are their weights: the softmax of the mask's row.

- ``lamina::fill_masked_rows`` puts those weights' mean of the values into such rows of the result;
- ``lamina::fill_masked_rows_forward`` also makes the stored logarithm infinite there, with which the library's
  backward takes their weights to be zero, and gives for each row its level and its factor: a key's weight is
  ``exp(mask - level) * factor``, and the factor of rows that are not masked is zero;
- ``lamina::fill_masked_rows_backward`` adds to the values' gradient what the library's backward has left out.

Each takes masks of four dimensions that broadcast to (batch, heads, queries, keys), and has a second form that writes
to its first operands. The functions here are the specification; on a GPU kernels (``masked_rows/kernels.py``) read the
mask, or the factors, and leave where no row is masked.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "IN_PLACE",
    "MASKED",
    "WRITING",
    "fill_backward_",
    "fill_forward_",
    "fill_masked_rows",
    "fill_masked_rows_backward",
    "fill_masked_rows_forward",
    "rows_of",
]

MASKED = -9900.0
"""A row whose mask is nowhere above this is masked: bfloat16 has -9984 for -1e4, and adds no score of less than 32."""

_FORMS = {
    "fill_masked_rows": ("Tensor{} out, Tensor mask, Tensor value", "Tensor", "()"),
    "fill_masked_rows_forward": (
        "Tensor{} out, Tensor{} logarithm, Tensor mask, Tensor value",
        "(Tensor, Tensor, Tensor)",
        "Tensor",
    ),
    "fill_masked_rows_backward": ("Tensor{} gradient, Tensor mask, Tensor rows, Tensor tangent", "Tensor", "()"),
}
"""Operation to operands and results, and to the results of the form that writes."""

IN_PLACE: dict[str, tuple[str, int]] = {}
"""Operation ("lamina.fill_masked_rows.default") to its form that writes, and to how many operands."""

for _name, (_operands, _results, _rest) in _FORMS.items():
    _written = _operands.count("{}")
    torch.library.define(f"lamina::{_name}", f"({_operands.format(*[''] * _written)}) -> {_results}")
    torch.library.define(f"lamina::{_name}_", f"({_operands.format('(a!)', '(b!)')}) -> {_rest}")
    IN_PLACE[f"lamina.{_name}.default"] = (f"lamina.{_name}_.default", _written)


WRITING = frozenset(form for form, _ in IN_PLACE.values())
"""The forms that write."""


def rows_of(out: Tensor, mask: Tensor) -> Tensor:
    """Memory for levels and factors: (2, mask's batch, mask's heads, queries)."""
    return mask.new_empty((2, *mask.shape[:2], out.shape[-2]), dtype=torch.float32)


def _rows(mask: Tensor, queries: int) -> Tensor:
    wide = mask.float()
    level = wide.amax(-1)
    factor = 1 / (wide - level[..., None]).exp().sum(-1)
    masked = level <= MASKED
    found = torch.stack([level.masked_fill(~masked, 0.0), factor.masked_fill(~masked, 0.0)])
    return found.expand(*found.shape[:-1], queries).contiguous()


def _weights(mask: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    level, factor = rows[..., None]
    return torch.where(factor != 0, (mask.float() - level).exp() * factor, 0.0).to(dtype)


def _fill_(out: Tensor, mask: Tensor, value: Tensor) -> None:
    fill_forward_(out, None, mask, value)


def fill_forward_(out: Tensor, logarithm: Tensor | None, mask: Tensor, value: Tensor) -> Tensor:
    """Put masked rows of ``out`` right, and of ``logarithm`` where it is given: ``fill_masked_rows_forward``."""
    rows = _rows(mask, out.shape[-2])
    masked = rows[1] != 0
    if bool(masked.any()):
        mixed = _weights(mask, rows, value.dtype) @ value
        out.copy_(torch.where(masked[..., None], mixed, out))
        if logarithm is not None:
            logarithm.masked_fill_(masked if logarithm.dim() == 3 else masked[..., None], math.inf)
    return rows


def fill_backward_(gradient: Tensor, mask: Tensor, rows: Tensor, tangent: Tensor) -> None:
    """Add to the values' gradient what flows back to them from masked rows: ``fill_masked_rows_backward``."""
    masked = rows[1] != 0
    if bool(masked.any()):
        weights = _weights(mask, rows, tangent.dtype).transpose(-2, -1)
        gradient.add_(weights @ torch.where(masked[..., None], tangent, 0.0))


def _filled(out: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    made = out.clone()
    torch.ops.lamina.fill_masked_rows_(made, mask, value)
    return made


def _filled_forward(out: Tensor, logarithm: Tensor, mask: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    made, changed = out.clone(), logarithm.clone()
    return made, changed, torch.ops.lamina.fill_masked_rows_forward_(made, changed, mask, value)


def _filled_backward(gradient: Tensor, mask: Tensor, rows: Tensor, tangent: Tensor) -> Tensor:
    made = gradient.clone()
    torch.ops.lamina.fill_masked_rows_backward_(made, mask, rows, tangent)
    return made


def _fake_forward_(out: Tensor, logarithm: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    return rows_of(out, mask)


def _fake_forward(out: Tensor, logarithm: Tensor, mask: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(out), torch.empty_like(logarithm), rows_of(out, mask)


def _fake_first(first: Tensor, *rest: Tensor) -> Tensor:
    return torch.empty_like(first)


def _fake_nothing(first: Tensor, *rest: Tensor) -> None:
    return None


for _name, _made, _fake in (
    ("fill_masked_rows", _filled, _fake_first),
    ("fill_masked_rows_", _fill_, _fake_nothing),
    ("fill_masked_rows_forward", _filled_forward, _fake_forward),
    ("fill_masked_rows_forward_", fill_forward_, _fake_forward_),
    ("fill_masked_rows_backward", _filled_backward, _fake_first),
    ("fill_masked_rows_backward_", fill_backward_, _fake_nothing),
):
    torch.library.impl(f"lamina::{_name}", "default", _made)
    torch.library.register_fake(f"lamina::{_name}", _fake)

fill_masked_rows: Any = torch.ops.lamina.fill_masked_rows.default
fill_masked_rows_forward: Any = torch.ops.lamina.fill_masked_rows_forward.default
fill_masked_rows_backward: Any = torch.ops.lamina.fill_masked_rows_backward.default
