"""The private torch names that observing a program takes (2.11 to 2.13)."""

from __future__ import annotations

from torch import Tensor

__all__ = ["is_view", "version"]


def version(tensor: Tensor) -> int:
    """How often the tensor's memory was written, as autograd counts it; an inference tensor does not count."""
    return 0 if tensor.is_inference() else tensor._version


def is_view(tensor: Tensor) -> bool:
    """Whether autograd takes the tensor for a view of another."""
    return tensor._base is not None
