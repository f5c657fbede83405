"""``apply`` of a function of autograd's as the interpreter runs it: the forward is captured as the rest of the program.

What it computes is given the history that it has in eager by one call between graphs, which has the user's backward run
where gradients are wanted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from lamina.capture.own.functions.history import history_of

__all__ = ["Context", "apply"]

IS_A_PROGRAM = True
"""``apply`` is interpreted as the user's functions are."""


class Context(FunctionCtx):
    """What a forward is given in place of the node of a history, which is made after it."""

    def save_for_backward(self, *tensors: torch.Tensor) -> None:
        self.to_save = tensors

    def save_for_forward(self, *tensors: torch.Tensor) -> None:
        self.saved_for_forward = tensors

    def mark_dirty(self, *args: torch.Tensor) -> None:
        self.dirty_tensors = args

    def mark_non_differentiable(self, *args: torch.Tensor) -> None:
        self.non_differentiable = args

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize_grads = value


def apply(kind: Any, args: tuple[Any, ...], apart: bool) -> Any:
    """``kind.apply(*args)``; ``apart``: its forward gets no context, but ``setup_context`` does after it."""
    setup = kind.setup_context
    context = Context()
    needs = []
    for arg in args:
        needs.append(isinstance(arg, torch.Tensor) and arg.requires_grad)
    context.needs_input_grad = tuple(needs)  # type: ignore[attr-defined]
    with torch.no_grad():
        if apart:
            output = kind.forward(*args)
            setup(context, args, output)
        else:
            output = kind.forward(context, *args)
    return history_of(kind, context, args, output)
