"""ATen's operators by the names of captured calls; stored calls ask for them too, so that nothing large is imported."""

from __future__ import annotations

import functools

import torch

from lamina.base.torch_private import OpOverload

__all__ = ["overloads_named"]


@functools.lru_cache(maxsize=4096)
def overloads_named(name: str) -> tuple[OpOverload, ...]:
    """ATen's operators of a captured call's name, such as ``add``; none where ATen has no such name.

    Names such as ``__eq__``, of Python's operators, are methods that every object has, not operators of ATen.
    """
    packet = getattr(torch.ops.aten, name, None)
    overloads = getattr(packet, "overloads", None)
    return () if overloads is None else tuple(getattr(packet, overload) for overload in overloads())
