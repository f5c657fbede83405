"""Pooling to a size that divides an image's: windows of one size, which have kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["window_decompositions"]

aten = torch.ops.aten

_LARGEST = 27
"""Elements of windows whose kernels are written out. ATen looks for places in larger ones faster than a loop does."""


def _window(x: Tensor, output_size: Sequence[int]) -> list[int] | None:
    """Sides of the windows that divide ``x``, a float image or a batch of them, evenly; ``None`` where none do."""
    if x.dim() not in (3, 4) or not x.is_floating_point() or len(output_size) != 2:
        return None
    if not all(isinstance(n, int) and n > 0 for n in (*x.shape, *output_size)):
        return None
    if any(n % count for n, count in zip(x.shape[-2:], output_size, strict=True)):
        return None
    sides = [n // count for n, count in zip(x.shape[-2:], output_size, strict=True)]
    return sides if sides[0] * sides[1] <= _LARGEST else None


def _adaptive_max_pool2d(x: Tensor, output_size: Sequence[int]) -> Any:
    """Maxima of windows, and their places."""
    window = _window(x, output_size)
    return NotImplemented if window is None else aten.max_pool2d_with_indices(x, window)


def _adaptive_max_pool2d_backward(grad: Tensor, x: Tensor, places: Tensor) -> Any:
    window = _window(x, grad.shape[-2:])
    if window is None or grad.dim() != x.dim():
        return NotImplemented
    return aten.max_pool2d_with_indices_backward(grad, x, window, window, [0, 0], [1, 1], False, places)


def window_decompositions() -> dict[Any, Callable[..., Any]]:
    """Overload to rule; a rule gives ``NotImplemented`` where it does not hold."""
    return {
        aten.adaptive_max_pool2d.default: _adaptive_max_pool2d,
        aten.adaptive_max_pool2d_backward.default: _adaptive_max_pool2d_backward,
    }
