"""Private torch names that tell who asks for the gradient of a tensor, as read in torch 2.11 to 2.13."""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch

__all__ = ["asked_of_engine", "has_hooks", "hooks_noticed", "looked_at", "without_absent"]

_RUN = torch.autograd.graph._engine_run_backward.__code__


def asked_of_engine() -> set[tuple[Any, int]] | None:
    """The nodes, and at which of their results, whose gradients running backwards give to their callers.

    Those of all threads that do not run in this one's stack: on a GPU the engine has threads of its own. None if no
    caller is found, as that of a backward that is not begun in Python.
    """
    asked = _asked_in(sys._getframe(1))
    if asked is None:
        found = [_asked_in(frame) for frame in sys._current_frames().values()]
        known = [one for one in found if one is not None]
        asked = set[tuple[Any, int]]().union(*known) if known else None
    return asked


def _asked_in(frame: Any) -> set[tuple[Any, int]] | None:
    """The same for one thread, all backwards that one of them began included."""
    asked: set[tuple[Any, int]] | None = None
    while frame is not None:
        if frame.f_code is _RUN:
            asked = asked or set()
            for given in frame.f_locals["args"][3]:
                node = given.grad_fn if isinstance(given, torch.Tensor) else given.node
                edge = node, given.output_nr
                if edge[0] is not None:
                    asked.add(edge)
        frame = frame.f_back
    return asked


class _Hooks(OrderedDict[Any, Any]):
    """A tensor's hooks, as torch keeps them; when there is one, those who asked for that are told.

    Where ``absent`` is not None, hooks are called without a gradient only if it gives true. Those that are ``ours``
    do not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ours = 0
        self.told: list[Callable[[], None]] = []
        self.absent: Callable[[], bool] | None = None

    def __setitem__(self, key: Any, hook: Any) -> None:
        if self.absent is not None and getattr(hook, "__qualname__", None) != _OF_SEVERAL:
            hook = _of_arrivals(hook, self.absent)
        super().__setitem__(key, hook)
        for tell in self.told:
            tell()

    def __bool__(self) -> bool:
        return len(self) > self.ours

    def look(self, hook: Callable[[Any], None]) -> None:
        """Call a function of ours with each gradient."""
        self.ours += 1
        super().__setitem__(hook, hook)


_OF_SEVERAL = "register_multi_grad_hook.<locals>.get_inner_hook.<locals>.inner_hook"
"""Torch's own hook that counts its calls: of a node of several tensors one for each of them, with or without."""


def _of_arrivals(hook: Any, absent: Callable[[], bool]) -> Callable[[Any], Any]:
    def called(gradient: Any) -> Any:
        return None if gradient is None and not absent() else hook(gradient)

    return called


def without_absent(tensor: torch.Tensor, absent: Callable[[], bool]) -> None:
    """Let hooks of a tensor that come later be called without a gradient only if ``absent()``."""
    hooks = _hooks_of(tensor)
    if isinstance(hooks, _Hooks):
        hooks.absent = absent


def _no() -> bool:
    return False


def _hooks_of(tensor: torch.Tensor) -> Any:
    hooks: Any = tensor._backward_hooks
    if hooks is None:
        tensor._backward_hooks = hooks = _Hooks()
        if tensor.grad_fn is not None:
            tensor.grad_fn._register_hook_dict(tensor)
    return hooks


def has_hooks(tensor: torch.Tensor) -> bool:
    """Whether somebody has hooks on a tensor."""
    return bool(tensor._backward_hooks)


def looked_at(tensor: torch.Tensor, look: Callable[[Any], None]) -> None:
    """Call a function of ours with each gradient of a tensor, also where the tensor's node does not run."""
    hooks = _hooks_of(tensor)
    if isinstance(hooks, _Hooks):
        hooks.look(look)


def hooks_noticed(tensor: torch.Tensor, node: Any, notice: Callable[[Any], None]) -> Mapping[Any, Any]:
    """Where torch keeps the hooks of a tensor, also those of later. At each new one ``notice`` is called with ``node``,
    which leads to the tensor and may bring it no gradient: they are not called then.

    They stay there when the tensor is written to, which gives it a new node and new hooks.
    """
    hooks = _hooks_of(tensor)
    if isinstance(hooks, _Hooks):
        reference = weakref.ref(node)

        def tell() -> None:
            found = reference()
            if found is not None:
                notice(found)

        hooks.told.append(tell)
        hooks.absent = hooks.absent or _no
    return hooks  # type: ignore[no-any-return]
