"""Which tensors have elements in common with another one of their storage, or among their own."""

from __future__ import annotations

from typing import Any

import torch

from lamina.base.byte_ranges import span
from lamina.base.captured import memory
from lamina.base.symbolic.torch_private import hint, is_sure, is_zero

__all__ = ["may_overlap", "meet", "overlaps"]

_LOOKS = 1000
"""Steps after which the search for a common element ends."""


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements share memory, as far as eager looks: along a dimension of stride 0.

    True as well where a symbolic size does not say whether there are two elements.
    """
    if tensor.layout is not torch.strided or any(isinstance(n, int) and n == 0 for n in tensor.shape):
        return False
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return any(is_zero(step) and not (isinstance(n, int) and n == 1) for n, step in steps)


def may_overlap(tensor: torch.Tensor) -> bool:
    """Whether two elements may share memory: each step must lead past what the smaller ones reach.

    What run-time sizes say of it is guarded.
    """
    if tensor.layout is not torch.strided or any(type(n) is int and n == 0 for n in tensor.shape):
        return False
    steps = [(step, n) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if type(n) is not int or n != 1]
    reached: Any = 0
    for step, n in sorted(steps, key=lambda one: hint(one[0])):
        if not is_sure(step > reached):
            return True
        reached = reached + (n - 1) * step
    return False


def meet(a: Any, b: Any, alike: bool = False) -> bool:
    """Whether two fake tensors share memory and are not the same elements in the same order, as far as can be told.

    With ``alike`` those count, too. Sizes that are symbols tell nothing: True.
    """
    place = memory(a)
    if place is None or place != memory(b):
        return False
    if not all(isinstance(n, int) for x in (a, b) for n in (*x.shape, *x.stride(), x.storage_offset())):
        return True
    if a.numel() == 0 or b.numel() == 0:
        return False
    if not alike and (a.storage_offset(), a.shape, a.stride(), a.dtype) == (
        b.storage_offset(),
        b.shape,
        b.stride(),
        b.dtype,
    ):
        return False
    (start, stop), (begin, end) = span(a), span(b)
    return bool(start < end and begin < stop) and not _interleave(a, b)


def _interleave(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one type have no element in common, as columns of one matrix; False if it is not seen."""
    if a.dtype != b.dtype:
        return False
    reach: dict[int, list[int]] = {}
    for tensor, sign in ((a, 1), (b, -1)):
        for n, step in zip(tensor.shape, tensor.stride(), strict=True):
            low, high = reach.setdefault(step, [0, 0])
            reach[step] = [low - (n - 1), high] if sign < 0 else [low, high + n - 1]
    steps = sorted(((step, low, high) for step, (low, high) in reach.items() if step > 0), reverse=True)
    looked = [0]

    def reached(distance: int, k: int) -> bool:
        looked[0] += 1
        if k == len(steps) or looked[0] > _LOOKS:
            return distance == 0 or looked[0] > _LOOKS
        step, low, high = steps[k]
        least = sum(s * lo for s, lo, _ in steps[k + 1 :])
        most = sum(s * hi for s, _, hi in steps[k + 1 :])
        first, last = max(low, -((most - distance) // step)), min(high, (distance - least) // step)
        return any(reached(distance - times * step, k + 1) for times in range(first, last + 1))

    return not reached(int(b.storage_offset()) - int(a.storage_offset()), 0)
