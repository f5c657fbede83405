"""Dropout by counter-based random numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lamina.base.devices import kind_of
from lamina.decomp.random_ops import philox_uniform
from lamina.decomp.streams import STREAMS

__all__ = ["dropout_decompositions"]

aten = torch.ops.aten


def _certain(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor] | None:
    """The result and mask where nothing is left to chance: then eager draws no numbers."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        # On a CPU eager multiplies by zero, which keeps signs and NaN.
        return x * 0 if kind_of(x).host else torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    return None


def _eager_dropout(x: Tensor, p: float, train: bool | None) -> Any:
    certain = _certain(x, p, train)
    return NotImplemented if certain is None else certain


def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """``x`` with each element zeroed with probability ``p``, the others scaled by 1/(1-p), and the others' mask."""
    certain = _certain(x, p, train)
    if certain is not None:
        return certain
    seed, offset = STREAMS.draw(x.device)
    mask = philox_uniform(x.shape, seed, offset, torch.float32, x.device) >= p
    return x * mask * (1.0 / (1.0 - p)), mask


def _native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return grad * mask * scale


def dropout_decompositions(numerics: str) -> dict[Any, Any]:
    """The rows for ``numerics``; with "eager" dropout that draws is a library call, which draws what eager draws."""
    if numerics == "eager":
        return {aten.native_dropout.default: _eager_dropout}
    return {
        aten.native_dropout.default: _native_dropout,
        aten.native_dropout_backward.default: _native_dropout_backward,
    }
