"""Hooks on saved tensors, asked for and put back for a while; names as read in torch 2.11 to 2.13."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["HookedAs", "hooks_on_saved_tensors"]


def hooks_on_saved_tensors() -> Any:
    """The innermost pair of hooks, (pack, unpack); None if there is none."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class HookedAs:
    """What is computed within is seen by ``hooks``, whatever hooks the program has entered since."""

    def __init__(self, hooks: Any) -> None:
        self.hooks = hooks

    def __enter__(self) -> None:
        self.others = hooks_on_saved_tensors() != self.hooks
        if self.others:
            torch._C._autograd._push_saved_tensors_default_hooks(*(self.hooks or (_itself, _itself)))

    def __exit__(self, *error: object) -> None:
        if self.others:
            torch._C._autograd._pop_saved_tensors_default_hooks()
