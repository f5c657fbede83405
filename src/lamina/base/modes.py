"""Modes that a program switches: what the capture of a graph tells the stages after it, and how they are set back."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["SWITCHED_BY_HAND", "autocast_kept"]

SWITCHED_BY_HAND = "lamina_switched_by_hand"
"""Key in a captured graph's metadata: whether calls in it switch the grad mode that no ``with`` statement undoes."""


def autocast_kept() -> Callable[[], None]:
    """What sets autocast, as this thread has it, back to what it is now."""
    devices = [d for d in ("cpu", "cuda") if torch.amp.is_autocast_available(d)]
    before = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
    cached = torch.is_autocast_cache_enabled()

    def set_back() -> None:
        for device, enabled, dtype in before:
            if torch.is_autocast_enabled(device) != enabled:
                torch.set_autocast_enabled(device, enabled)
            if torch.get_autocast_dtype(device) != dtype:
                torch.set_autocast_dtype(device, dtype)
        if torch.is_autocast_cache_enabled() != cached:
            torch.set_autocast_cache_enabled(cached)

    return set_back
