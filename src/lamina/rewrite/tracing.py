"""A function of tensors as the ATen operations it calls.

The same tracing serves the user's calls, both sides of a rule and what replaces a match, so that equal programs look
equal however they are spelled. Operations are recorded as they are called (``aten.softmax.int``, ``aten.linear``),
above autograd; with a table of decompositions they are recorded as they are after ahead-of-time autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from lamina.base.fx.recording import Decompositions, Recorder, Unrecordable, called
from lamina.base.fx.torch_private import flatten
from lamina.base.symbolic.torch_private import is_fake
from lamina.base.torch_private import fresh_symbols_dropped
from lamina.rewrite.known import known_result
from lamina.rewrite.torch_private import above_autograd_only, fake_mode_of

__all__ = ["Fragment", "Untraceable", "trace"]


class Untraceable(Exception):
    """The function is more than a function of tensors. Says why."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A traced function: its placeholders, its calls in order, and its results.

    ``results`` are nodes in the place of tensors among the leaves of what the function returned, ``spec`` says how
    those nest.
    """

    inputs: tuple[Node, ...]
    calls: tuple[Node, ...]
    results: tuple[Any, ...]
    spec: Any


def trace(
    function: Callable[[Sequence[Any]], Any],
    tensors: Sequence[torch.Tensor],
    decompositions: Decompositions | None = None,
    symbols: Callable[[Any], Node | None] | None = None,
    expected: Any = None,
) -> Fragment:
    """Call ``function`` with ``tensors`` (fake, or without data) and note its operations. Raises ``Untraceable``.

    With ``decompositions`` operations are taken apart as ahead-of-time autograd does. ``symbols`` finds the node for a
    symbolic size. ``expected`` is what the function, known to be a single operation, is known to give: the operation
    is taken to give it instead of being computed. If it is another one after all, ``Untraceable`` is raised.
    """
    one = None if expected is None else _OneOperation(expected)
    computed = one or (_known_or_called if decompositions is None and any(map(is_fake, tensors)) else called)
    recorder = Recorder(tensors, decompositions, symbols=symbols, computed=computed)
    with torch.no_grad(), fake_mode_of(tensors), above_autograd_only(), fresh_symbols_dropped(tensors) as fresh:
        with recorder:
            value = function(tensors)
        leaves, spec = flatten(value)
        results = tuple(recorder.node(v) if isinstance(v, torch.Tensor) else v for v in leaves)
    if recorder.fault:
        raise Untraceable(recorder.fault)
    if fresh:  # the captured graph has other symbols for the same sizes
        raise Untraceable("it makes something whose size depends on data")
    if one is not None and not (one.seen and _is_same(value, expected)):
        raise Untraceable(_SEVERAL)
    return Fragment(tuple(recorder.inputs), tuple(recorder.calls), results, spec)


class _OneOperation:
    """Takes the first operation to give what is ``expected``, without computing it; there may be no other."""

    def __init__(self, expected: Any) -> None:
        self.expected, self.seen = expected, False

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The operation's result."""
        if self.seen:
            raise Unrecordable(_SEVERAL)
        self.seen = True
        return self.expected


_SEVERAL = "it is more than one operation"


def _known_or_called(func: Any, args: Any, kwargs: Any) -> Any:
    known = known_result(func, args, kwargs)
    return func(*args, **kwargs) if known is None else known


def _is_same(value: Any, expected: Any) -> bool:
    """Whether a function gave the very tensors that its operation gave it."""
    if isinstance(value, (tuple, list)) and isinstance(expected, (tuple, list)):
        return len(value) == len(expected) and all(a is b for a, b in zip(value, expected, strict=True))
    return value is expected
