"""What joint tracing asks of captured graphs, traced operations and their tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from lamina.aot.torch_private import SET_GRAD, STATELESS, STATIC_INPUT
from lamina.aot.trace import CallTrace
from lamina.base.captured import OF_A_MODULE, example

__all__ = ["as_assumed", "computes_with_gradients", "dense", "dependence", "is_static", "last_uses"]


def computes_with_gradients(graph: Graph) -> bool:
    """Whether a call of ``graph`` is made where gradients are on, as they are now or as it switches them."""
    on = torch.is_grad_enabled()
    for node in graph.nodes:
        if node.target is SET_GRAD:
            on = bool(node.args[0])
        elif on and node.op.startswith("call_") and node.target not in STATELESS:
            return True
    return False


def dependence(
    graph: Graph,
    differentiable: Sequence[int],
    gradients: Sequence[Any],
    arrived: Mapping[Node, Iterable[Node]],
) -> tuple[frozenset[int] | None, ...]:
    """For each gradient, the outputs whose tangents it is there for: those that it is computed from.

    A constant one, as that of the sign that ``copysign`` takes, is there for those that its call has ``arrived`` at.
    """
    tangents = [n for n in graph.find_nodes(op="placeholder") if str(n.target).startswith("tangents")]
    masks: dict[Node, int] = {n: 1 << i for n, i in zip(tangents, differentiable, strict=True)}
    for node in graph.nodes:
        mask = masks.get(node, 0)
        for operand in node.all_input_nodes:
            mask |= masks[operand]
        for gradient in arrived.get(node, ()) if not mask else ():
            mask |= masks.get(gradient, 0)
        masks[node] = mask
    return tuple(None if g is None else frozenset(i for i in differentiable if masks[g] >> i & 1) for g in gradients)


def last_uses(graph: Graph) -> dict[Node, int]:
    """For each node the position of its last user."""
    last: dict[Node, int] = {}
    for position, node in enumerate(graph.nodes):
        for operand in node.all_input_nodes:
            last[operand] = position
    return last


def as_assumed(trace: CallTrace, fakes: Sequence[torch.Tensor | None]) -> bool:
    """Whether the gradients that arrive are laid out as the trace took them to be."""
    for result, requires, fake in zip(trace.results, trace.requires_grad, fakes, strict=True):
        if requires != (fake is not None):
            return False
        if fake is not None:
            value = result.meta["val"]
            if fake.stride() != value.stride() or fake.shape != value.shape or fake.dtype != value.dtype:
                return False
    return True


def dense(fake: torch.Tensor) -> torch.Tensor:
    """A tensor laid out as ``fake`` if that has no gaps or overlaps, else contiguous: how tangents are passed in."""
    return torch.empty_like(fake)


def is_static(node: Node) -> bool:
    """Whether who captured the graph marked the placeholder as a parameter or buffer."""
    if OF_A_MODULE in node.meta:
        return True
    described = node.meta.get("tensor_dict") or {}
    return described.get(STATIC_INPUT) is not None or isinstance(example(node), torch.nn.Parameter)
