"""Distances of points as a product, whose root joins what comes after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["distance_decompositions"]

aten = torch.ops.aten


def _euclidean_dist(first: Tensor, second: Tensor) -> Any:
    """Distances [*batch, n, m] of points [*batch, n, d] and [*batch, m, d], by eager's sums and product.

    The squared lengths are two more columns of the operands, so that the product is the squared distances.
    """
    if first.dtype not in (torch.float32, torch.float64) or first.shape[-1] == 0:
        return NotImplemented
    lengths, others = (x.square().sum(-1, keepdim=True) for x in (first, second))
    left = torch.cat([first * -2, lengths, torch.ones_like(lengths)], -1)
    right = torch.cat([second, torch.ones_like(others), others], -1)
    return (left @ right.mT).clamp_min(0).sqrt()


def distance_decompositions() -> dict[Any, Callable[..., Any]]:
    """Overload to rule, where sums may be added up in another order than eager's."""
    return {aten._euclidean_dist.default: _euclidean_dist}
