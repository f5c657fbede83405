"""Private torch names of compiled graphs as they run, as read in torch 2.11 to 2.13; they load no compiler."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

from lamina.base.torch_private import version_of

__all__ = [
    "SET_GRAD",
    "autocast_enabled",
    "direct_apply",
    "graph_is_kept",
    "has_storage",
    "is_grad_enabled",
    "is_transformed",
    "is_zero_tensor",
    "never_captured",
    "running_backward",
    "saved_and_changed",
    "saved_tensors",
    "saving_is_hooked",
    "transforms_are_active",
    "will_be_executed",
    "without_autocast",
]

SET_GRAD = torch._C._set_grad_enabled
"""The call by which a captured graph switches gradients on and off."""

autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled
is_grad_enabled: Callable[[], bool] = torch._C.is_grad_enabled
is_zero_tensor: Callable[[torch.Tensor], bool] = torch.Tensor._is_zerotensor
transforms_are_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
is_transformed: Callable[[Any], bool] = torch._C._functorch.is_functorch_wrapped_tensor
has_storage: Callable[[torch.Tensor], bool] = torch._C._has_storage
running_backward: Callable[[], int] = torch._C._current_graph_task_id
will_be_executed: Callable[[Any], bool] = torch._C._will_engine_execute_node
graph_is_kept: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph
saving_is_hooked: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks


def without_autocast() -> contextlib.AbstractContextManager[Any]:
    """Compiled graphs hold their casts already; library calls in them must not cast again."""
    disabled: contextlib.AbstractContextManager[Any] = torch._C._DisableAutocast()
    return disabled


def never_captured(function: Any) -> None:
    """Keep Dynamo from capturing ``function`` and what it calls, at no cost when it runs.

    A backward that runs while Dynamo captures its caller would otherwise be captured itself, and with it this compiler.
    """
    strategy = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    set_code_exec_strategy(function.__code__, strategy)
    function.never_captured = True


def saved_tensors(ctx: Any) -> Any:
    """What a context holds; torch refuses the question once a backward has freed it."""
    descriptor: Any = torch._C._FunctionBase.saved_tensors
    return descriptor.__get__(ctx)


def saved_and_changed(ctx: Any) -> tuple[list[Any], set[int]]:
    """What a context holds, and the places of what may have been written to since: ``saved_tensors`` refuses all of it.

    Torch tells nobody the version that a result of the context's function was saved with: such a result counts as
    changed unless its version is that which the context has ``made`` it with, which is 0 if it does not tell.
    """
    made = getattr(ctx, "made", {})
    held = ctx._raw_saved_tensors
    try:
        tensors = [one.data for one in held]
    except RuntimeError:
        return list(saved_tensors(ctx)), set()
    if not all(hasattr(one, "unpack") for one in held):  # torch 2.11
        return _saved_or_written(ctx, tensors)
    changed = set()
    for place, one in enumerate(held):
        try:
            tensors[place] = one.unpack()
        except RuntimeError:
            if version_of(tensors[place]) != made.get(place, 0):
                changed.add(place)
    return tensors, changed


def _saved_or_written(ctx: Any, tensors: list[Any]) -> tuple[list[Any], set[int]]:
    """The same where one of ``tensors`` cannot be asked for alone: all that was ever written to may have changed."""
    try:
        return list(saved_tensors(ctx)), set()
    except RuntimeError:
        made = getattr(ctx, "made", {})
        return tensors, {place for place, tensor in enumerate(tensors) if version_of(tensor) != made.get(place, 0)}


def direct_apply(function: type[torch.autograd.Function], **attributes: Any) -> Callable[..., Any]:
    """``function.apply`` without what torch does in Python for function transforms, for when there are none.

    That is two microseconds, and a look at each argument for a wrapper that outlived its transform. The backward is
    called without torch's Python in front of it, which asks which of two names the user gave it, with a ctx
    that has these ``attributes`` until the forward sets others.
    """
    node: Any = function._backward_cls
    node.apply = function.backward
    for name, value in attributes.items():
        setattr(node, name, value)
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply
