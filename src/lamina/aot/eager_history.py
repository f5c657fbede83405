"""What eager's own history of a captured graph keeps: whether it can be gone through twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot.torch_private import backend_fakes, flatten, tracing_state

__all__ = ["eager_saves"]


def eager_saves(gm: GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Whether a node of the history that eager records for ``gm`` saves a tensor: a second backward is then refused.

    The graph runs once on fake tensors. True where it does not run so, or has a node that is not torch's own.
    """
    places = [i for i, x in enumerate(example_inputs) if isinstance(x, torch.Tensor)]
    mode, fakes = backend_fakes([example_inputs[i] for i in places])
    if mode is None:
        return True
    given = list(example_inputs)
    try:
        with tracing_state(mode), torch.enable_grad():
            for place, fake in zip(places, fakes, strict=True):
                leaf = fake.detach().clone()
                given[place] = leaf.requires_grad_().view_as(leaf) if fake.requires_grad else leaf
            results, _ = flatten(gm(*given))
            written = [given[i] for i in places]
            return any(_saves(node) for node in _history([*results, *written]))
    except Exception:
        return True


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
