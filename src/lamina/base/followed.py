"""Weak references to tensors that follow a tensor to another object, where our own front end puts it there."""

from __future__ import annotations

import weakref

import torch

__all__ = ["Followed", "followed", "moved"]


class Followed:
    """A weak reference to the object that a tensor is; a call gives it, or None when it is gone."""

    __slots__ = ("__weakref__", "reference")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.reference = weakref.ref(tensor)

    def __call__(self) -> torch.Tensor | None:
        return self.reference()


_followed: weakref.WeakValueDictionary[int, Followed] = weakref.WeakValueDictionary()
"""References in use, by the identity of the object."""


def followed(tensor: torch.Tensor) -> Followed:
    """The reference to ``tensor``."""
    found = _followed.get(id(tensor))
    if found is None or found() is not tensor:
        found = _followed[id(tensor)] = Followed(tensor)
    return found


def moved(before: torch.Tensor, after: torch.Tensor) -> None:
    """Have the reference to ``before`` lead to ``after``, which is the same tensor now."""
    found = _followed.pop(id(before), None)
    if found is not None and found() is before:
        found.reference = weakref.ref(after)
        _followed[id(after)] = found
