"""Tensors in the layout that a compiled graph was planned for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lamina.aot.engine.torch_private import is_zero_tensor

__all__ = ["agree", "in_memory", "restored"]


def in_memory(given: Any) -> Any:
    """A tensor whose memory holds its values as they are: ``given``, if that is so."""
    if not isinstance(given, torch.Tensor):
        return given
    if is_zero_tensor(given):
        return torch.zeros_like(given)
    return given.resolve_neg().resolve_conj() if given.is_neg() or given.is_conj() else given


def restored(saved: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """``saved``, or a copy of it that has these strides and whose memory holds its values."""
    saved = in_memory(saved)
    if saved.stride() == stride or agree(saved.shape, saved.stride(), stride):
        return saved
    part = saved[tuple(slice(0, 1) if step == 0 else slice(None) for step in stride)]  # one of what is repeated
    fresh = torch.empty_strided(part.shape, stride, dtype=saved.dtype, device=saved.device)
    return fresh.copy_(part).expand(saved.shape)


def agree(sizes: Sequence[int], actual: Sequence[int], planned: Sequence[int]) -> bool:
    """Whether the strides differ only along dimensions of one element, or in a tensor of none."""
    triples = zip(sizes, actual, planned, strict=True)
    return 0 in sizes or all(n == 1 or a == p for n, a, p in triples)
