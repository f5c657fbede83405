"""Writes to tensors whose layout the functional form of the call does not keep.

A write leaves a tensor where it is. Traced, the tensor gets a new value, which is laid out as the functional form of
the call lays out its results: ``masked_fill`` gives a contiguous tensor, ``masked_fill_`` keeps a transposed one. So
such a call becomes a copy of the functional form's result into the tensor, which keeps the layout in tracing as well.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from lamina.aot import eager_reasons
from lamina.base.aliasing import writes_first
from lamina.base.captured import argument, example, memory, tensors
from lamina.base.fx.copying import Made, copy_nodes
from lamina.base.fx.torch_private import graph_module
from lamina.base.reasons import Reason
from lamina.base.source import operation_name, source_of
from lamina.base.symbolic.torch_private import contiguous, is_fake, is_sure
from lamina.base.torch_private import base_of

__all__ = ["keeping_layouts", "lost_layout", "same_strides"]

_RANDOM = frozenset(str.split("bernoulli cauchy exponential geometric log_normal normal random uniform"))
"""Writing calls that draw numbers, in the order of memory."""
_OF_ATEN = frozenset(str.split("fill zero"))
"""Functional forms that only ATen has, not ``torch.Tensor``."""
_OPERATORS = {getattr(operator, f"i{name}"): getattr(operator, name) for name in ("floordiv", "mod", "pow", "truediv")}


def keeping_layouts(gm: GraphModule) -> GraphModule:
    """``gm`` with writes that would change a layout in tracing as copies; ``gm`` itself if it has none."""
    chosen = _losing(gm)
    if not chosen:
        return gm
    graph = Graph()
    copy_nodes(graph, gm.graph.nodes, writes={node: partial(_as_copy, node, *chosen[node]) for node in chosen})
    return graph_module(gm, graph, with_meta=False)


def _as_copy(node: Node, target: Any, value: Any, graph: Graph, made: Made) -> Node:
    """The write as a copy of what its functional form, ``target``, gives."""
    args, kwargs = map_arg((node.args, _keywords(node)), made.__getitem__)
    new = graph.create_node("call_method" if isinstance(target, str) else "call_function", target, args, kwargs)
    new.meta = {**node.meta, "example_value": value}
    copy = graph.call_method("copy_", (made[_written(node)], new))
    copy.meta = dict(node.meta)
    return copy


def lost_layout(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: such a write to a tensor with a history, or None.

    The gradient of a copy's target is zero, and what is added to it has another sign where it is -0.0.
    """
    for node in _losing(gm):
        if example(_written(node)).requires_grad:
            return eager_reasons.LOST_LAYOUT(place=source_of(node))
    return None


def same_strides(one: Any, other: Any) -> bool:
    """Whether two fake tensors of one shape are surely laid out alike."""
    sizes = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(is_sure(n == 1) or is_sure(a == b) for n, a, b in sizes)


def _losing(gm: GraphModule) -> dict[Node, tuple[Any, Any]]:
    """The writes that lose a layout, with the functional form's target and the fake tensor that it gives."""
    found = {}
    known = {id(example(node)) for node in gm.graph.nodes}
    for node in gm.graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        target = _functional(node)
        written = _written(node) if target is not None else None
        if written is None or not is_fake(example(written)):
            continue
        operands = [one for other in node.all_input_nodes for one in tensors(other)]
        if all(contiguous(one) for one in operands) or _is_made_again(example(_written(node)), known):
            continue
        value = _traced(target, node)
        before = example(written)
        if _could_be(value, before) and not same_strides(value, before):
            found[node] = target, value
    return found


def _is_made_again(written: Any, known: set[int]) -> bool:
    """Whether ``written`` is a part of a contiguous tensor of the graph.

    Tracing puts the new part into that tensor, which keeps its layout so, and makes the view again of it.
    """
    base = base_of(written)
    if base is None or id(base) not in known or not contiguous(base):
        return False
    return is_sure(written.numel() < base.numel())


def _could_be(value: Any, before: Any) -> bool:
    """Whether ``value`` is a new value for ``before``, not a view of it, as calls that reshape it give."""
    if not is_fake(value) or memory(value) is None or memory(value) == memory(before):
        return False
    if value.dtype != before.dtype or value.dim() != before.dim():
        return False
    return all(is_sure(a == b) for a, b in zip(value.shape, before.shape, strict=True))


def _functional(node: Node) -> Any:
    """The target of the call that gives what ``node`` writes, None if there is none."""
    if "out" in node.kwargs:
        return node.target
    if not node.args or not writes_first(node) or node.kwargs.get("inplace"):
        return None
    if node.target in _OPERATORS:
        return _OPERATORS[node.target]
    name = operation_name(node.target).removesuffix("_")
    if name in _RANDOM:
        return None
    if name in _OF_ATEN:
        return getattr(torch.ops.aten, name)
    if node.op == "call_method":
        return name if callable(getattr(torch.Tensor, name, None)) else None
    return getattr(torch, name, None) if callable(getattr(torch, name, None)) else None


def _written(node: Node) -> Any:
    return node.kwargs["out"] if "out" in node.kwargs else node.args[0]


def _keywords(node: Node) -> dict[str, Any]:
    return {name: value for name, value in node.kwargs.items() if name != "out"}


def _traced(target: Any, node: Node) -> Any:
    """The fake tensor that the functional form gives, None where it gives none."""
    args = map_arg(node.args, argument)
    kwargs = map_arg(_keywords(node), argument)
    try:
        with torch.no_grad():
            return getattr(args[0], target)(*args[1:], **kwargs) if isinstance(target, str) else target(*args, **kwargs)
    except Exception:
        return None
