"""Which counter-based random numbers a use of them gets."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from lamina.decomp.random_ops import philox_seed
from lamina.decomp.torch_private import current_trace

__all__ = ["STREAMS"]


class _Streams:
    """One seed for each graph and device, and for each use of it another offset."""

    def __init__(self) -> None:
        self._graphs: weakref.WeakKeyDictionary[Any, dict[torch.device, list[Any]]] = weakref.WeakKeyDictionary()

    def draw(self, device: torch.device) -> tuple[Tensor, int]:
        """The seed of the graph being traced and an offset no other use in it has."""
        trace = current_trace()
        if trace is None:
            return philox_seed(device), 0
        state = self._graphs.setdefault(trace, {})
        if device not in state:
            state[device] = [philox_seed(device), 0]
        entry = state[device]
        entry[1] += 1
        return entry[0], entry[1] - 1


STREAMS = _Streams()
