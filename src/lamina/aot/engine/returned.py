"""Tensors that a compiled graph returned and that its backward reads while they hold what the forward wrote."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.utils.weak import TensorWeakRef

from lamina.base.torch_private import version_of

__all__ = ["Returned", "all_unchanged"]


class Returned:
    """A tensor that was handed to the caller, weakly, and where its elements are."""

    __slots__ = ("_address", "_reference", "_shape", "_stride", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._reference = TensorWeakRef(tensor)
        self._address, self._shape, self._stride = tensor.data_ptr(), tensor.shape, tensor.stride()
        self._version = version_of(tensor)

    def tensor(self) -> Tensor | None:
        """The tensor, if it still exists where it was and no write to it was counted."""
        found = self._reference()
        if found is None or version_of(found) != self._version or found.data_ptr() != self._address:
            return None
        return found if found.shape == self._shape and found.stride() == self._stride else None


def all_unchanged(returned: Sequence[Returned]) -> list[Tensor] | None:
    """The tensors, or None if one of them is gone or was written to."""
    found = [held.tensor() for held in returned]
    present = [t for t in found if t is not None]
    return present if len(present) == len(found) else None
