"""Leaky ReLU with slopes that are drawn, by counter-based random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lamina.decomp.random_ops import philox_uniform
from lamina.decomp.streams import STREAMS

__all__ = ["slope_decompositions"]

aten = torch.ops.aten


def _rrelu(
    x: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> Any:
    """``x`` with elements that are not above 0 times a slope between ``lower`` and ``upper``, and each element's slope.

    The given ``noise`` is overwritten in eager, and read by nobody. It is drawn again in the backward pass.
    """
    if not training or generator is not None or not math.isfinite(upper - lower) or lower > upper:
        return NotImplemented
    seed, offset = STREAMS.draw(x.device)
    exact = torch.float64 if x.dtype == torch.float64 else torch.float32
    drawn = philox_uniform(x.shape, seed, offset, exact, x.device) * (upper - lower) + lower
    slopes = torch.where(x <= 0, drawn.to(x.dtype), 1)
    return x * slopes, slopes


def slope_decompositions() -> dict[Any, Callable[..., Any]]:
    """Overload to rule, where other numbers may be drawn than eager's."""
    return {aten.rrelu_with_noise_functional.default: _rrelu}
