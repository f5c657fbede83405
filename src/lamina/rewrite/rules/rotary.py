"""Rotary embeddings by complex numbers, in real arithmetic: the products then fuse with what is around them."""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.base.rule import Rule, rule, tensor
from lamina.rewrite.rules.places import CAPTURED

__all__ = ["ROTARY"]


_PAIRS = tensor(..., 2, dtype=torch.float32)
_ANGLES = tensor(..., dtype=torch.complex64)


def _turned_as_complex(x: Tensor = _PAIRS, f: Tensor = _ANGLES) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(x) * f)


def _turned(x: Tensor, f: Tensor) -> Tensor:
    cos, sin = torch.view_as_real(f).unbind(-1)
    low, high = x.unbind(-1)
    return torch.stack((low * cos - high * sin, low * sin + high * cos), -1)


ROTARY: tuple[Rule, ...] = (rule(_turned_as_complex, _turned, name="rotary by complex numbers", at=CAPTURED),)
