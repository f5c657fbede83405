"""Saved tensors and gradients brought into the layout that a compiled backward was planned for.

``torch.autograd.graph.saved_tensors_hooks`` may hand back a tensor with the same values in another layout; kernels that
address memory by the planned strides would then read the wrong elements. A gradient may be zeros without any memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lamina.aot.engine.layouts import agree, in_memory, restored
from lamina.base.symbolic.torch_private import from_arguments, hint
from lamina.base.torch_private import boxed

__all__ = ["with_planned_strides"]

Boxed = Callable[[list[Any]], Any]
Strides = Callable[[Sequence[Any]], tuple[int, ...]]


def with_planned_strides(compiled: Boxed, fakes: Sequence[Any]) -> Boxed:
    """``compiled`` for inputs laid out like ``fakes``; an input laid out otherwise is copied first.

    None among ``fakes`` stands for a gradient, which may be laid out in any way. What is no memory of its own values,
    zeros or a negative or conjugate view, is such memory then.

    A layout is strides, where the arguments tell the symbols of those, else the order of the dimensions in memory and
    which of them repeat one element. Inputs that were planned with gaps at such strides are passed on as they are.
    """
    gradients = [i for i, fake in enumerate(fakes) if fake is None]
    exact: list[tuple[int, Strides]] = []
    orders: list[tuple[int, tuple[int, ...]]] = []
    for i, fake in enumerate(fakes):
        if not isinstance(fake, torch.Tensor):
            continue
        if (strides := from_arguments(fake.stride(), fakes)) is not None:
            exact.append((i, strides))
        elif (order := _order(fake)) is not None:
            orders.append((i, order))

    def call(args: list[Any]) -> Any:
        for i in gradients:
            args[i] = in_memory(args[i])
        for i, strides in exact:
            args[i] = restored(args[i], strides(args))  # no name here holds a tensor that ``compiled`` lets go
        for i, order in orders:
            args[i] = _as_planned(args[i], order)
        return compiled(args)

    return boxed(call)


def _as_planned(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """``tensor``, or a copy of it where it is laid out otherwise or its memory does not hold its values."""
    tensor = in_memory(tensor)
    planned = _strides(tensor.shape, order)
    if tensor.stride() == planned or agree(tensor.shape, tensor.stride(), planned):
        return tensor
    return _laid_out(tensor, order)


def _order(fake: torch.Tensor) -> tuple[int, ...] | None:
    """Dimensions from the fastest to the slowest, without those of stride 0; None for a tensor with gaps."""
    sizes, strides = [hint(n) for n in fake.shape], [hint(s) for s in fake.stride()]
    dims = [d for d, stride in enumerate(strides) if stride != 0]
    order = tuple(sorted(dims, key=lambda d: (strides[d], sizes[d] != 1, -d)))
    return order if agree(sizes, strides, _strides(sizes, order)) else None


def _strides(sizes: Sequence[int], order: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [0] * len(sizes), 1
    for d in order:
        strides[d] = step
        step *= max(sizes[d], 1)
    return tuple(strides)


def _laid_out(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """A copy whose dimensions are in that order in memory; the others repeat their first element."""
    once = tensor
    for d in set(range(tensor.dim())) - set(order):
        once = once.narrow(d, 0, 1)
    fresh = torch.empty_strided(once.shape, _strides(once.shape, order), dtype=tensor.dtype, device=tensor.device)
    return fresh.copy_(once).expand(tensor.shape)
