"""What ``.grad`` of leaves holds within a traced call, and calls of autograd's, which a later call makes again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from lamina.base.torch_private import is_leaf
from lamina.capture.own.frame import MISSING
from lamina.capture.own.nested import flat
from lamina.capture.own.reuse.facts import Facts, Place
from lamina.capture.own.reuse.learning import Learning
from lamina.capture.own.reuse.remade import Remade
from lamina.capture.own.reuse.values import grad_of, set_grad
from lamina.capture.own.torch_private import autocast_states, unseen
from lamina.capture.own.training.torch_private import Unhooked, leaves_of, unhooked

__all__ = ["Gradients"]

_BACKWARDS: tuple[Callable[..., Any], ...] = (torch.Tensor.backward, torch.autograd.backward)
_CALLS = (*_BACKWARDS, torch.autograd.grad)
"""Functions that compute gradients of what the graphs of the call have computed."""
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_SETTING = Remade(set_grad, spoils=True)


class _Trace(Protocol):
    """What is asked of a trace."""

    ended: str | None
    attempt: Callable[[], None] | None
    state: tuple[Any, ...]
    facts: Facts
    learning: Learning

    def end(self, why: str) -> None: ...
    def note(self, kind: str, places: tuple[Place, ...], value: Any) -> None: ...
    def place_of(self, value: Any) -> Place | None: ...
    def child(self, owner: Any, how: str, key: Any, value: Any) -> Any: ...


class Gradients:
    """Gradients of the leaves of one trace.

    What a leaf holds when the call begins is a place, as other attributes are. From the first write on, and once
    ``backward`` may have written, it is what the steps before have left there: each of them does the same in each call
    for which the facts hold, as the graph that autograd goes over is made by steps, of leaves that look the same.
    """

    def __init__(self, trace: _Trace) -> None:
        self.trace = trace
        self._written: dict[int, torch.Tensor] = {}
        self._kept: list[Any] = []

    def clear(self) -> None:
        """Let go of all."""
        self._written.clear()
        self._kept.clear()

    def read(self, leaf: Any) -> Any:
        """``leaf.grad``; ``MISSING`` if it is not known what decides it."""
        trace = self.trace
        if trace.ended is not None or not self._is_known(leaf):
            return MISSING
        with unseen():
            found = leaf.grad
        if id(leaf) not in self._written:
            return trace.child(leaf, "attribute", "grad", found)
        if found is not None and trace.learning.ref(found) is None:
            self._kept.append(found)
            trace.learning.found(grad_of, (leaf,), found)
        return found

    def write(self, leaf: Any, value: Any) -> bool:
        """Whether ``leaf.grad = value`` was done, as a step that a later call does again."""
        trace = self.trace
        if trace.ended is not None or not self._is_known(leaf):
            return False
        if value is not None and (type(value) not in _TENSORS or trace.learning.ref(value) is None):
            return False
        if trace.attempt is not None:
            trace.attempt()
        self._change(leaf)
        try:
            with unseen():
                leaf.grad = value
        except BaseException:
            trace.end("an assignment to a gradient raises")
            raise
        trace.learning.called(_SETTING, (leaf, value), {}, None, _state())
        return True

    def computes(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call of autograd's is one that a later call can make again; notes what that rests on."""
        trace = self.trace
        if trace.ended is not None or not any(function is one for one in _CALLS):
            return False
        given = list(flat((args, kwargs)))
        if any(trace.learning.ref(tensor) is None for tensor in given):
            return False
        if trace.learning.history_from_outside or autocast_states() != trace.state[1]:
            return False
        with unseen():
            reached = list({id(leaf): leaf for leaf in leaves_of(given)}.values())
            leaves = [leaf for leaf in reached if leaf is not None and self._is_known(leaf)]
            if len(leaves) != len(reached) or not unhooked(leaves):
                return False  # a function of the user's, whose backward runs, is none
        if function in _BACKWARDS:
            for leaf in leaves:
                self._change(leaf)
                with unseen():
                    held = leaf.grad
                if held is not None:
                    trace.learning.overwritten[id(held)] = held
        self._note_unhooked(leaves)
        return trace.ended is None

    def computed(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What such a call gives."""
        try:
            found = function(*args, **kwargs)
        except BaseException:
            self.trace.end(f"{function.__name__} raises")
            raise
        self._kept.append(found)
        self.trace.learning.called(Remade(function, spoils=True), args, kwargs, found, _state())
        return found

    def _note_unhooked(self, leaves: Iterable[torch.Tensor]) -> None:
        trace = self.trace
        places = tuple(place for leaf in leaves if (place := trace.place_of(leaf)) is not None)
        asked = trace.facts.place("computed", None, (Unhooked(), *places))
        trace.note("constant", (asked,), True)

    def _is_known(self, leaf: Any) -> bool:
        """Whether ``leaf`` is a leaf that was there before the call."""
        if type(leaf) not in _TENSORS or self.trace.place_of(leaf) is None:
            return False
        with unseen():
            return is_leaf(leaf)

    def _change(self, leaf: torch.Tensor) -> None:
        """Note what ``leaf`` holds before it is written to for the first time."""
        if id(leaf) not in self._written:
            with unseen():
                self.trace.child(leaf, "attribute", "grad", leaf.grad)
            self._written[id(leaf)] = leaf


def _state() -> tuple[Any, Any]:
    return torch.is_grad_enabled(), autocast_states()
