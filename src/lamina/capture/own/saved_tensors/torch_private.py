"""Hooks on saved tensors, asked for and put back for a while; names as read in torch 2.11 to 2.13."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["HookedAs", "hooks_on_saved_tensors", "itself", "without_idle_hooks"]


def hooks_on_saved_tensors() -> Any:
    """The innermost pair of hooks, (pack, unpack); None if there is none."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def itself(tensor: torch.Tensor) -> torch.Tensor:
    """A hook that sees what is saved and leaves it."""
    return tensor


@contextmanager
def without_idle_hooks() -> Iterator[None]:
    """Without the innermost hooks of ours, which do nothing: transforms that differentiate refuse any."""
    count = 0
    while (hooks := hooks_on_saved_tensors()) and hooks[0] is itself:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        count += 1
    try:
        yield
    finally:
        for _ in range(count):
            torch._C._autograd._push_saved_tensors_default_hooks(itself, itself)


class HookedAs:
    """What is computed within is seen by ``hooks``, whatever hooks the program has entered since."""

    def __init__(self, hooks: Any) -> None:
        self.hooks = hooks

    def __enter__(self) -> None:
        self.others = hooks_on_saved_tensors() != self.hooks
        if self.others:
            torch._C._autograd._push_saved_tensors_default_hooks(*(self.hooks or (itself, itself)))

    def __exit__(self, *error: object) -> None:
        if self.others:
            torch._C._autograd._pop_saved_tensors_default_hooks()
