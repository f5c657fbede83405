"""Rows of a tensor that are read again only if they still hold what was noted of them.

``lamina::row_digest`` makes 64 bits of each row, ``lamina::unless_changed`` takes the rows of a tensor whose digest is
as noted, and of another tensor where it is not. The functions here are the executable specification of the kernels.

An element's bits are mixed with its place in the row by two rounds of multiplication and shift (each a bijection of 32
bits, so that no change of a single element goes unseen); the sums of what the first and the second round give, wrapping
around, are the low and the high word.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["FIRST_MIX", "PLACE", "SECOND_MIX", "row_digest", "suits_digest", "unless_changed"]

PLACE = 0x9E3779B1 - (1 << 32)
"""What an element's place is multiplied by. These numbers are odd, and as int32 they are negative."""
FIRST_MIX = (0x85EBCA6B - (1 << 32), 15)
"""Factor and shift of the first round."""
SECOND_MIX = (0xC2B2AE35 - (1 << 32), 13)
"""Factor and shift of the second round."""

torch.library.define("lamina::row_digest", "(Tensor rows) -> Tensor")
torch.library.define("lamina::unless_changed", "(Tensor seen, Tensor digest, Tensor again) -> Tensor")


def suits_digest(rows: Tensor) -> bool:
    """Whether digests are made of such tensors: real floating point numbers of 16 or 32 bits."""
    return rows.dim() > 0 and rows.dtype in (torch.bfloat16, torch.float16, torch.float32)


def _mixed(value: Tensor, factor: int, shift: int) -> Tensor:
    value = value * factor
    return value ^ ((value >> shift) & ((1 << (32 - shift)) - 1))


def _digest(rows: Tensor) -> Tensor:
    """The digest of each row (last dimension) of ``rows``: int64, with a last dimension of 1."""
    bits = rows.view(torch.int32 if rows.dtype == torch.float32 else torch.int16).to(torch.int32)
    places = torch.arange(rows.shape[-1], dtype=torch.int32, device=rows.device)
    first = _mixed(bits ^ (places * PLACE), *FIRST_MIX)
    second = _mixed(first, *SECOND_MIX)
    return ((second.to(torch.int64) << 32) + first).sum(-1, keepdim=True)


def _unless_changed(seen: Tensor, digest: Tensor, again: Tensor) -> Tensor:
    """Rows of ``seen`` whose digest is ``digest``, of ``again`` where it is another one; all of one shape and dtype."""
    return torch.where(_digest(seen) == digest, seen, again)


def _fake_digest(rows: Tensor) -> Tensor:
    return rows.new_empty((*rows.shape[:-1], 1), dtype=torch.int64)


def _fake_unless_changed(seen: Tensor, digest: Tensor, again: Tensor) -> Tensor:
    return torch.empty_like(again)


torch.library.impl("lamina::row_digest", "default", _digest)
torch.library.impl("lamina::unless_changed", "default", _unless_changed)
torch.library.register_fake("lamina::row_digest", _fake_digest)
torch.library.register_fake("lamina::unless_changed", _fake_unless_changed)

row_digest: Any = torch.ops.lamina.row_digest.default
unless_changed: Any = torch.ops.lamina.unless_changed.default
