"""The state of autocast, set for a while."""

from __future__ import annotations

from typing import Any

import torch

from lamina.capture.own.torch_private import autocast_states

__all__ = ["Autocast"]


class Autocast:
    """Sets autocast for a while."""

    def __init__(self, states: tuple[Any, ...]) -> None:
        self.states = states

    def _set(self, states: tuple[Any, ...]) -> None:
        *kinds, cached = states
        for kind, enabled, dtype in kinds:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(cached)

    def __enter__(self) -> None:
        self.before = autocast_states()
        if self.before != self.states:
            self._set(self.states)

    def __exit__(self, *error: object) -> None:
        if self.before != self.states:
            self._set(self.before)
