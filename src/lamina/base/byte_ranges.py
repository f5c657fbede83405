"""Which bytes of its storage a tensor reaches; stored calls ask for it, too, so that nothing large is imported."""

from __future__ import annotations

import torch

__all__ = ["span"]


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """Bytes of its storage: where a tensor's first element begins, and where its last one ends."""
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset())
    return start * tensor.element_size(), (start + last + 1) * tensor.element_size()
