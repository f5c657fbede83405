"""Modes that a program switches: what the capture of a graph tells the stages after it, and how they are set back."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["SWITCHED_BY_HAND", "autocast_depth", "autocast_kept"]

SWITCHED_BY_HAND = "lamina_switched_by_hand"
"""Key in a captured graph's metadata: whether calls in it switch the grad mode that no ``with`` statement undoes."""


def autocast_kept() -> Callable[[], None]:
    """What sets autocast, as this thread has it, back to what it is now.

    So are the levels that what raised in between has entered: on leaving the outermost, casts that are kept are freed.
    """
    devices = [d for d in ("cpu", "cuda") if torch.amp.is_autocast_available(d)]
    before = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
    cached, depth = torch.is_autocast_cache_enabled(), autocast_depth()

    def set_back() -> None:
        for left in range(autocast_depth() - 1, depth - 1, -1):
            torch.autocast_decrement_nesting()
            if not left:
                torch.clear_autocast_cache()
        for device, enabled, dtype in before:
            if torch.is_autocast_enabled(device) != enabled:
                torch.set_autocast_enabled(device, enabled)
            if torch.get_autocast_dtype(device) != dtype:
                torch.set_autocast_dtype(device, dtype)
        if torch.is_autocast_cache_enabled() != cached:
            torch.set_autocast_cache_enabled(cached)

    return set_back


def autocast_depth() -> int:
    """How many levels of autocast this thread has entered."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())
