"""References to tensors that follow a tensor to another object, where our own front end puts it there."""

from __future__ import annotations

import weakref

import torch

__all__ = ["Followed", "Kept", "followed", "held_by_followers", "moved"]


class Followed:
    """A weak reference to the object that a tensor is; a call gives it, or None when it is gone."""

    __slots__ = ("__weakref__", "holders", "kept", "reference")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.reference = weakref.ref(tensor)
        self.kept: torch.Tensor | None = None
        self.holders = 0

    def __call__(self) -> torch.Tensor | None:
        return self.reference()


class Kept:
    """Keeps a tensor, whatever object it is, as long as this is kept."""

    __slots__ = ("_following",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._following = followed(tensor)
        self._following.kept = tensor
        self._following.holders += 1

    def __del__(self) -> None:
        self._following.holders -= 1
        if self._following.holders == 0:
            self._following.kept = None


_followed: weakref.WeakValueDictionary[int, Followed] = weakref.WeakValueDictionary()
"""References in use, by the identity of the object."""


def followed(tensor: torch.Tensor) -> Followed:
    """The reference to ``tensor``."""
    found = _followed.get(id(tensor))
    if found is None or found() is not tensor:
        found = _followed[id(tensor)] = Followed(tensor)
    return found


def held_by_followers(tensor: torch.Tensor) -> int:
    """How many references to the object ``tensor`` go with the tensor when it is put into another object."""
    found = _followed.get(id(tensor))
    return int(found is not None and found.kept is tensor)


def moved(before: torch.Tensor, after: torch.Tensor) -> None:
    """Have the reference to ``before`` lead to ``after``, which is the same tensor now."""
    found = _followed.pop(id(before), None)
    if found is not None and found() is before:
        found.reference = weakref.ref(after)
        if found.kept is not None:
            found.kept = after
        _followed[id(after)] = found
