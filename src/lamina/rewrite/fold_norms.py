"""The algebra of a batch norm with fixed statistics inside the convolution before it.

The norm multiplies each channel by a factor and adds a shift. The factor may as well multiply the channel's weights,
and the shift be the convolution's bias: then nothing is left to do after the convolution but what its library does
anyway. Computed in float32 from the parameters of each call, so that it holds whatever they are by then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import dtype

__all__ = ["NormParameters", "folded_shift", "folded_weight"]

aten = torch.ops.aten

Call = Callable[..., Any]
"""Applies an ATen operation to operands: ``call_for`` of a graph, to nodes."""


@dataclass(frozen=True, slots=True)
class NormParameters:
    """What a batch norm applies to each of C channels: tensors or nodes of shape [C]; ``scale`` and ``shift`` may be
    ``None``.
    """

    mean: Any
    variance: Any
    scale: Any
    shift: Any
    eps: float


def folded_weight(call: Call, norm: NormParameters, weight: Any, rank: int, held: dtype) -> Any:
    """The weight [C, ...] of ``rank`` dimensions, each channel times the norm's factor, rounded once, to ``held``."""
    factor = call(aten.view.default, _factor(call, norm), [-1] + [1] * (rank - 1))
    return _as(call, call(aten.mul.Tensor, _wide(call, weight), factor), held)


def folded_shift(call: Call, norm: NormParameters, bias: Any) -> Any:
    """What the convolution adds to each channel then, in float32; ``bias`` is what it added before, or ``None``."""
    centre = _wide(call, norm.mean)
    if bias is not None:
        centre = call(aten.sub.Tensor, centre, _wide(call, bias))
    moved = call(aten.mul.Tensor, centre, _factor(call, norm))
    if norm.shift is None:
        return call(aten.neg.default, moved)
    return call(aten.sub.Tensor, _wide(call, norm.shift), moved)


def _factor(call: Call, norm: NormParameters) -> Any:
    factor = call(aten.rsqrt.default, call(aten.add.Tensor, _wide(call, norm.variance), norm.eps))
    return factor if norm.scale is None else call(aten.mul.Tensor, factor, _wide(call, norm.scale))


def _wide(call: Call, value: Any) -> Any:
    return _as(call, value, torch.float32)


def _as(call: Call, value: Any, held: dtype) -> Any:
    return call(aten._to_copy.default, value, dtype=held)
