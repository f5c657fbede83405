"""Which hooks the gradients of leaves run; private names as read in torch 2.11 to 2.13."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from lamina.capture.own.saved_tensors.torch_private import hooks_on_saved_tensors

__all__ = [
    "GROUPS",
    "OTHER_BACKEND",
    "RANGE",
    "Unhooked",
    "is_no_break",
    "is_profiled",
    "leaves_of",
    "undisabled",
    "unhooked",
]

RANGE: Any = torch.autograd.profiler.record_function
"""What names a part of a program for profilers."""
is_profiled: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]
"""Whether a profiler is on."""
GROUPS: Any = torch._C._group_tensors_by_device_and_dtype
"""Puts tensors of lists into groups by device and type: the looks of the tensors decide what it gives."""
OTHER_BACKEND: Callable[[], str] = torch._C._get_privateuse1_backend_name
"""The name of the backend that somebody may have added to torch."""
_DISABLING = ("torch._compile", "torch._dynamo.eval_frame")
"""The modules of torch's that keep functions of torch's own from TorchDynamo, the second once that is loaded."""


def undisabled(function: Any) -> bool:
    """Whether a function of torch's optimizers is kept from TorchDynamo, by a wrapper that does nothing else."""
    if type(function) is not FunctionType or function.__globals__.get("__name__") not in _DISABLING:
        return False
    inner = function.__dict__.get("__wrapped__")
    return type(inner) is FunctionType and str(inner.__globals__.get("__name__")).startswith("torch.optim.")


def is_no_break(function: Any) -> bool:
    """Whether a function does nothing but tell TorchDynamo to end a graph."""
    loaded = sys.modules.get("torch._dynamo")
    return loaded is not None and function is vars(loaded).get("graph_break")


def unhooked(leaves: Iterable[torch.Tensor]) -> bool:
    """Whether the gradients of ``leaves`` run no hook of Python's, and saved tensors have none."""
    if hooks_on_saved_tensors() is not None or torch.is_anomaly_enabled():
        return False
    for leaf in leaves:
        if leaf._backward_hooks or leaf._post_accumulate_grad_hooks:
            return False
        alone = leaf._use_count() == 1  # type: ignore[attr-defined]
        if not alone and _has_hooks(leaf):  # a node may be there that accumulates its gradient
            return False
    return True


def _has_hooks(leaf: torch.Tensor) -> bool:
    """Whether the node that accumulates the gradient of a leaf has hooks of Python's."""
    with torch.enable_grad():
        node: Any = torch.autograd.graph.get_gradient_edge(leaf).node
    for register in (node.register_hook, node.register_prehook):
        handle = register(_nothing)
        known = handle.hooks_dict_ref()
        handle.remove()
        if known:
            return True
    return False


def _nothing(*gradients: Any) -> None:
    """A hook by which others are found."""


class Unhooked:
    """Asks whether the gradients of leaves run no hook; none has come if none was registered since the last time."""

    def __init__(self) -> None:
        self.counted, self.__name__ = -1, "no_hooks"
        self.leaves: tuple[int, ...] = ()
        self.held: list[weakref.ref[torch.Tensor]] = []

    def __call__(self, *leaves: torch.Tensor) -> bool:
        if RemovableHandle.next_id == self.counted and (*map(id, leaves),) == self.leaves:
            return hooks_on_saved_tensors() is None and not torch.is_anomaly_enabled()
        found = unhooked(leaves)
        if found:
            self.counted = RemovableHandle.next_id
            self.leaves = (*map(id, leaves),)
            self.held = [weakref.ref(leaf, self._forget) for leaf in leaves]
        return found

    def _forget(self, gone: Any) -> None:
        """Another tensor may come to be at the same address."""
        self.counted = -1


def leaves_of(roots: Iterable[torch.Tensor]) -> Iterator[torch.Tensor | None]:
    """The leaves that ``roots`` depend on, as far as autograd knows; None for a function of the user's on the way."""
    waiting: list[Any] = []
    for root in roots:
        if root.grad_fn is not None:
            waiting.append(root.grad_fn)
        elif root.requires_grad:
            yield root
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        made_by = getattr(node, "_forward_cls", None)
        if made_by is not None:
            if not str(made_by.__module__).startswith(("lamina.", "torch.")):
                yield None
        elif (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
