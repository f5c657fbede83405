"""Fake tensors under torch's private names (2.11 to 2.13)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from lamina.base.devices import kind_of

__all__ = ["empty_strided"]


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    like: torch.Tensor | None = None,
) -> torch.Tensor:
    """``torch.empty_strided`` where a mode of fake tensors is active, or beside the fake tensor ``like``.

    Likewise at a fifth of the time.
    """
    if like is None:
        mode = _active_mode()
    else:  # another mode may have to see the call
        mode = like.fake_mode if isinstance(like, FakeTensor) else None
    numbers = all(type(n) is int for n in (*size, *stride))
    if mode is None or not kind_of(device).host or not numbers or torch.is_inference_mode_enabled():
        return torch.empty_strided(size, stride, dtype=dtype, device=device)
    with in_kernel_invocation_manager(mode):
        made = torch.empty_strided(size, stride, dtype=dtype, device="meta")
    return FakeTensor(mode, made, device)


def _active_mode() -> FakeTensorMode | None:
    found: FakeTensorMode | None = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return found
