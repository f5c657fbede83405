"""The state of a device's global random generator as a tensor, read and set by operators of a graph.

``lamina::rng_state`` copies the state, ``lamina::set_rng_state`` sets it. With them the backward draws again what the
forward drew: it notes its own state, sets the forward's, draws, and sets its own again. Both carry the tag of random
operators, so they keep their place among the draws, and that of operators no CUDA graph can record.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lamina.base.devices import kind_of

__all__ = ["rng_state", "set_rng_state"]

_TAGS = (torch.Tag.nondeterministic_seeded, torch.Tag.cudagraph_unsafe)
torch.library.define("lamina::rng_state", "(Device device) -> Tensor", tags=_TAGS)
torch.library.define("lamina::set_rng_state", "(Tensor state, Device device) -> ()", tags=_TAGS)


def _rng_state(device: torch.device) -> Tensor:
    """A copy of the state, in the CPU's memory."""
    if kind_of(device).host:
        return torch.get_rng_state()
    state: Tensor = torch.get_device_module(device).get_rng_state(device)
    return state


def _set_rng_state(state: Tensor, device: torch.device) -> None:
    if kind_of(device).host:
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state.cpu(), device)


def _fake_rng_state(device: torch.device) -> Tensor:
    return torch.empty(_rng_state(device).shape, dtype=torch.uint8, device="cpu")


def _fake_set_rng_state(state: Tensor, device: torch.device) -> None:
    return None


torch.library.impl("lamina::rng_state", "default", _rng_state)
torch.library.impl("lamina::set_rng_state", "default", _set_rng_state)
torch.library.register_fake("lamina::rng_state", _fake_rng_state)
torch.library.register_fake("lamina::set_rng_state", _fake_set_rng_state)

rng_state: Any = torch.ops.lamina.rng_state.default
set_rng_state: Any = torch.ops.lamina.set_rng_state.default
