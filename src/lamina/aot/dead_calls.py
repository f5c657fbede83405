"""Calls whose results nothing uses: eager makes them all the same, with their errors and their random numbers."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.aot.torch_private import is_fake
from lamina.base.aliasing import writes_first
from lamina.base.source import operation_name, source_of

__all__ = ["dead_call"]

_MOVES = frozenset(
    str.split(
        "broadcast_to cat chunk clone concat contiguous detach empty empty_like expand expand_as flatten full"
        " full_like getitem movedim narrow ones ones_like permute reshape reshape_as size split squeeze stack swapaxes"
        " swapdims t tile to transpose unbind unflatten unsqueeze view view_as zeros zeros_like"
    )
)
"""Calls that hold for every dtype and all values: sizes alone may not fit, which tracing has seen."""

_COMPUTES = frozenset(
    str.split(
        "adaptive_avg_pool1d adaptive_avg_pool2d amax amin argmax argmin argsort avg_pool1d avg_pool2d baddbmm"
        " batch_norm bmm conv1d conv2d conv3d cumprod cumsum dropout einsum getattr group_norm instance_norm"
        " layer_norm linear log_softmax logsumexp masked_fill matmul max max_pool1d max_pool2d mean min mm mse_loss"
        " norm normalize outer pad prod rms_norm scaled_dot_product_attention softmax sort std sum topk tril triu var"
        " where"
    )
)
"""Calls that hold for floating point numbers of all values."""

_NUMBERS = frozenset(
    str.split("add bitwise_and bitwise_or eq ge gt le lt logical_and logical_not logical_or mul ne sub")
)
"""Calls that hold for whole numbers of all values."""

_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_RANDOM = torch.Tag.nondeterministic_seeded


def dead_call(gm: GraphModule, eager_numbers: bool) -> str:
    """Why the captured graph is eager's to run: a call that nothing depends on and that may raise, or "".

    A functional graph has no place for it. ``eager_numbers``: random numbers are eager's, so each draw counts.
    """
    live = _live(gm)
    for node in gm.graph.nodes:
        if node in live or not _gives_tensors(node):
            continue
        if eager_numbers and _draws(node):
            return f"{source_of(node)} draws random numbers that nothing uses"
        if not _holds(node):
            return f"{source_of(node)} may raise though nothing uses its result"
    return ""


def _live(gm: GraphModule) -> set[Node]:
    """What a result or a write depends on, and calls that are made for what they do."""
    live: set[Node] = set()
    for node in reversed(gm.graph.nodes):
        if node in live or node.op == "output" or writes_first(node) or "out" in node.kwargs:
            live.add(node)
            live.update(node.all_input_nodes)
    return live


def _gives_tensors(node: Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    value = node.meta.get("example_value")
    return is_fake(value) or (isinstance(value, (tuple, list)) and any(is_fake(one) for one in value))


def _draws(node: Node) -> bool:
    return any(_RANDOM in overload.tags for overload in _overloads(node))


def _overloads(node: Node) -> list[Any]:
    """The operators of the call's name."""
    packet = getattr(torch.ops.aten, operation_name(node.target), None)
    return [] if packet is None else [getattr(packet, name) for name in packet.overloads()]


def _holds(node: Node) -> bool:
    """Whether the call, which tracing has accepted, raises for no values of its operands."""
    name = operation_name(node.target)
    given = (n.meta.get("example_value") for n in node.all_input_nodes)
    tensors = [t for t in given if isinstance(t, torch.Tensor)]
    if name == operator.getitem.__name__:
        return len(tensors) <= 1
    if name in _MOVES or name in ("float", "double", "half", "bfloat16", "long", "int", "bool"):
        return True
    if all(t.dtype.is_floating_point and t.dtype.itemsize > 1 for t in tensors):
        pointwise = any(torch.Tag.pointwise in overload.tags for overload in _overloads(node))
        return pointwise or name in _COMPUTES or _draws(node)
    return name in _NUMBERS and all(t.dtype.is_floating_point or t.dtype in _WHOLE for t in tensors)
