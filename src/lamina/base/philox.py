"""Philox4x32-10 as tensor arithmetic: the executable specification of Lamina's random numbers.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import torch

__all__ = ["uniform", "uniform_range"]

_MASK = 0xFFFFFFFF
"""The low 32 bits of a product: Philox4x32 works on 32-bit words."""
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def _high_low(multiplier: int, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of ``multiplier * value``, in int64 arithmetic that never overflows."""
    low_part = multiplier * (value & 0xFFFF)
    high_part = multiplier * (value >> 16) + (low_part >> 16)
    return high_part >> 16, ((high_part << 16) | (low_part & 0xFFFF)) & _MASK


def _words(block: torch.Tensor, seed: int, stream: int) -> list[torch.Tensor]:
    """The four 32-bit words of each counter block, as int64."""
    c = [block & _MASK, (block >> 32) & _MASK, torch.full_like(block, stream & _MASK), torch.zeros_like(block)]
    key0, key1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(10):
        high0, low0 = _high_low(_MULTIPLIERS[0], c[0])
        high1, low1 = _high_low(_MULTIPLIERS[1], c[2])
        c = [high1 ^ c[1] ^ key0, low1, high0 ^ c[3] ^ key1, low0]
        key0, key1 = (key0 + _WEYL[0]) & _MASK, (key1 + _WEYL[1]) & _MASK
    return c


def _fraction(word: torch.Tensor) -> torch.Tensor:
    return (word >> 8).to(torch.float32) * (1.0 / (1 << 24))


def uniform(index: torch.Tensor, seed: int, stream: int) -> torch.Tensor:
    """Uniform float32 numbers in [0, 1), one for each int64 element of ``index`` (any shape, at least 0).

    The key is ``seed`` (64 bits), the counter ``(index // 4, stream)``, the lane ``index % 4``; the
    top 24 bits of the lane's word are the mantissa.
    """
    c = _words(index >> 2, seed, stream)
    lane = index & 3
    return _fraction(torch.where(lane < 2, torch.where(lane == 0, c[0], c[1]), torch.where(lane == 2, c[2], c[3])))


def uniform_range(count: int, seed: int, stream: int) -> torch.Tensor:
    """``uniform`` of the indices 0 to ``count`` - 1, with each block of four computed once."""
    words = _words(torch.arange(-(-count // 4), dtype=torch.int64), seed, stream)
    return _fraction(torch.stack(words, dim=1).flatten()[:count])
