"""Rows of a tensor that are read again only if they still hold what was noted of them.

``lamina::row_digest`` makes 64 bits of each row, ``lamina::unless_changed`` takes the rows of a tensor whose digest is
as noted, and of another tensor where it is not. The functions here are the executable specification of the kernels.

A digest is the sum of an element's bits, as a number, times a pseudo-random number of 64 bits for its place in the row,
wrapping around (a multilinear hash: Carter and Wegman, "Universal classes of hash functions", 1979). Two unrelated rows
agree with a probability of at most 2^-48 for elements of 16 bits, of 2^-32 for those of 32; a change of a single
element is always seen, since no place's number ends in 32 zeros. Rows of zeros have the digest zero. In a loop over
rows the numbers for the places are made once, and an element takes two multiplications.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["MIXES", "PLACE", "row_digest", "suits_digest", "unless_changed"]

PLACE = 0x9E3779B1 - (1 << 32)
"""What an element's place is multiplied by. Such numbers are odd, and as int32 they are negative."""
MIXES = ((15, 0x85EBCA6B - (1 << 32)), (13, 0xC2B2AE35 - (1 << 32)), (16, 0x27D4EB2F))
"""Rounds of a shift and a multiplication: the first makes the low word for a place, the others the high word of it."""

torch.library.define("lamina::row_digest", "(Tensor rows) -> Tensor")
torch.library.define("lamina::unless_changed", "(Tensor seen, Tensor digest, Tensor again) -> Tensor")


def suits_digest(rows: Tensor) -> bool:
    """Whether digests are made of such tensors: real floating point numbers of 16 or 32 bits."""
    return rows.dim() > 0 and rows.dtype in (torch.bfloat16, torch.float16, torch.float32)


def _mixed(value: Tensor, shift: int, factor: int) -> Tensor:
    return (value ^ ((value >> shift) & ((1 << (32 - shift)) - 1))) * factor


def _digest(rows: Tensor) -> Tensor:
    """The digest of each row (last dimension) of ``rows``: int64, with a last dimension of 1."""
    words = {2: torch.int16, 4: torch.int32}[rows.element_size()]
    bits = rows.view(words).to(torch.int64) & ((1 << 8 * rows.element_size()) - 1)
    low = _mixed(torch.arange(1, rows.shape[-1] + 1, dtype=torch.int32, device=rows.device) * PLACE, *MIXES[0])
    high = _mixed(_mixed(low, *MIXES[1]), *MIXES[2])
    factors = (high.to(torch.int64) << 32) + (low.to(torch.int64) & 0xFFFFFFFF)
    return (bits * factors).sum(-1, keepdim=True)


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
