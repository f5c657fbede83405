"""What eager's own history of a captured graph keeps: whether it can be gone through twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot.torch_private import flatten, mode_apart, tracing_state
from lamina.base.symbolic.torch_private import hint

__all__ = ["eager_saves"]


def eager_saves(gm: GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Whether a node of the history that eager records for ``gm`` saves a tensor: a second backward is then refused.

    The graph runs once on fake tensors of a mode of its own. True where it does not run so, or has a node that is not
    torch's own.
    """
    mode = mode_apart()
    try:
        with tracing_state(mode), torch.enable_grad():
            given = [_likely(x) for x in example_inputs]
            results, _ = flatten(gm(*given))
            return any(_saves(node) for node in _history([*results, *given]))
    except Exception:
        return True


def _likely(value: Any) -> Any:
    """A tensor, or an integer, as the graph is likely to be given: of sizes that are numbers, so no guard is added."""
    if isinstance(value, torch.SymInt):
        return hint(value)
    if not isinstance(value, torch.Tensor):
        return value
    sizes, strides = [hint(n) for n in value.shape], [hint(n) for n in value.stride()]
    leaf = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    if not value.requires_grad:
        return leaf
    copy = leaf.requires_grad_().clone()  # a graph may write to it, as to no leaf nor a view of one
    return copy if copy.stride() == leaf.stride() else leaf.view_as(leaf)


def _history(tensors: Sequence[Any]) -> list[Any]:
    """Every node behind the tensors."""
    stack = [t.grad_fn for t in tensors if isinstance(t, torch.Tensor) and t.grad_fn is not None]
    seen = set(stack)
    while stack:
        for node, _ in stack.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                stack.append(node)
    return list(seen)


def _saves(node: Any) -> bool:
    """Whether a node holds a tensor, or may: what a custom function saved does not show in its attributes."""
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return True
    names = [name for name in dir(node) if name.startswith("_raw_saved_")]
    return any(getattr(node, name) is not None for name in names)
