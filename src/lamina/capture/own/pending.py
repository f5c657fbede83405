"""Tensors that are computed later: what they look like is known, their values are when their graph has run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lamina.capture.own.torch_private import meta_tensor

__all__ = ["Pending", "lost", "pending"]


class Pending(torch.Tensor):
    """A tensor whose values a graph gives that has not run yet; it becomes an ordinary tensor in place.

    Operations on it go to the function mode of the call in progress. Whatever gets past that mode makes the graph run.
    """

    _recorder: Any
    _fake: torch.Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        _compute(args, kwargs or {})
        return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        _compute(args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def as_subclass(self, cls: Any) -> Any:
        """What gets past all modes, and asks what is pending for an alias, which is to have no object yet."""
        _compute((self,), {})
        return self.as_subclass(cls)  # of an ordinary tensor now


Pending.__name__ = Pending.__qualname__ = "Tensor"  # as Python's own messages have it
Pending.__module__ = "torch"


def pending(recorder: Any, fake: torch.Tensor) -> Pending:
    """A tensor that looks as ``fake`` does, which a graph of ``recorder`` computes."""
    made: Pending = meta_tensor(Pending, fake)
    made.__dict__.update(_recorder=recorder, _fake=fake)
    return made


def lost(tensor: Pending) -> RuntimeError:
    """The error of whoever uses a tensor whose graph has failed."""
    return RuntimeError("the graph that was to compute this tensor failed, as an exception before this one says")


def _compute(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Have the pending tensors among the arguments of an operation computed."""
    found = _first(args, kwargs)
    if found is not None:
        found._recorder.escaped("what does not go through function modes")
        found._recorder.flush()
        if type(found) is Pending:
            raise lost(found)


def _first(args: Sequence[Any], kwargs: dict[str, Any]) -> Pending | None:
    """A pending tensor among the arguments of an operation."""
    waiting = [*args, *kwargs.values()]
    while waiting:
        value = waiting.pop()
        if type(value) is Pending:
            return value
        if isinstance(value, (list, tuple)):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(value.values())
    return None
