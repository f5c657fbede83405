"""What torch counts of tensors and gives no public name."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

__all__ = ["versions_of"]


def versions_of(tensors: Sequence[Tensor]) -> list[int]:
    """How often each was written to; nothing for tensors of inference mode, which are not counted."""
    return [t._version for t in tensors if not t.is_inference()]
