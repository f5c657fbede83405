"""The state of autocast, set for a while."""

from __future__ import annotations

from typing import Any

import torch

from lamina.base.modes import autocast_depth
from lamina.capture.own.torch_private import autocast_states

__all__ = ["Autocast", "switch_autocast"]


def switch_autocast(states: tuple[Any, ...], depth: int | None = None) -> None:
    """Set autocast, and so many levels of it as ``depth`` says."""
    *kinds, cached = states
    for kind, enabled, dtype in kinds:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(cached)
    while depth is not None and autocast_depth() < depth:
        torch.autocast_increment_nesting()


class Autocast:
    """Sets autocast for a while, as one level more: casts that are kept within do not outlive the outermost level."""

    def __init__(self, states: tuple[Any, ...]) -> None:
        self.states = states

    def __enter__(self) -> None:
        self.before = autocast_states()
        if self.before != self.states:
            torch.autocast_increment_nesting()
            switch_autocast(self.states)

    def __exit__(self, *error: object) -> None:
        if self.before != self.states:
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()
            switch_autocast(self.before)
