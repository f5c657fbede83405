"""Captured calls whose results eager lays out in another way than tracing: made of contiguous operands, or copied.

Tracing gives these results the layout of the operands, as those of a batch norm on a CPU, which are contiguous or have
channels last. With a contiguous operand both agree, and eager's kernels copy an operand that is not contiguous, or walk
through it as if it were: the numbers are the same. What depends on such a
result is traced again, because its layout, and whether it is a view, may be others.

A result of which a trial call tells another order of dimensions (a roll of an image with channels last is contiguous in
tracing, and has channels last in eager) is copied into that order; the copy fuses with what makes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from lamina.aot.strides import format_of_result, made_contiguous
from lamina.aot.torch_private import is_torch_function, switches_state
from lamina.aot.trial_calls import order_in_eager, trying
from lamina.base.aliasing import tensors_written
from lamina.base.captured import argument, example, tensors
from lamina.base.fx.copying import Made, copy_nodes
from lamina.base.fx.torch_private import graph_module
from lamina.base.source import operation_name
from lamina.base.symbolic.torch_private import contiguous, is_fake

__all__ = ["with_contiguous_operands"]


class _NotTracedAgain(Exception):
    """A call that depends on such a result has no value that tracing could tell."""


def with_contiguous_operands(gm: GraphModule) -> GraphModule:
    """``gm``, or a copy in which such calls have contiguous operands.

    It is ``gm`` where their results are written to, where a call switches a state of torch, and where what depends on
    them cannot be traced again: a view that is none of the true layout, a size that only data tells.
    """
    if any(switches_state(node.target) for node in gm.graph.nodes):
        return gm
    with trying():
        return _with_eagers_layouts(gm)


def _with_eagers_layouts(gm: GraphModule) -> GraphModule:
    chosen = [node for node in gm.graph.nodes if _deciding(node) is not None or _format_in_eager(node) is not None]
    if not chosen:
        return gm
    dependent = _dependent(gm, chosen)
    if any(tensors_written(node) for node in dependent):
        return gm
    graph = Graph()
    writes: dict[Node, Callable[[Graph, Made], Any]] = {}
    for node in dependent:
        writes[node] = partial(_again, node)
    try:
        copy_nodes(graph, gm.graph.nodes, writes=writes)
    except _NotTracedAgain:
        return gm
    return graph_module(gm, graph, with_meta=False)


_FORMATS = {
    (0, 2, 3, 1): torch.channels_last,
    (0, 2, 3, 4, 1): torch.channels_last_3d,
    **{tuple(range(rank)): torch.contiguous_format for rank in range(2, 7)},
}
"""By the order in which memory holds the dimensions."""

_Operand = tuple[Node, torch.memory_format]


def _deciding(node: Node) -> _Operand | None:
    """The operand of a call that must be contiguous, in a format, for tracing to be right, None if it is or none is."""
    if node.op not in ("call_function", "call_method") or node.kwargs.get("inplace") or "out" in node.kwargs:
        return None
    if (found := format_of_result(node)) is not None:
        return found
    place = made_contiguous(operation_name(node.target), [argument(one) for one in node.args])
    operand = None if place is None else node.args[place]
    if not isinstance(operand, Node) or contiguous(example(operand)):
        return None
    return (operand, torch.contiguous_format) if example(operand).layout is torch.strided else None


def _format_in_eager(node: Node) -> torch.memory_format | None:
    """The format of a call's result where a trial tells that tracing has another order of its dimensions.

    Not of one with a gradient: the calls that make the gradient may be laid out in another way in eager, too.
    """
    result = example(node)
    if node.op not in ("call_function", "call_method") or tensors_written(node) or "out" in node.kwargs:
        return None
    if not is_fake(result) or result.requires_grad or not all(type(n) is int and n > 1 for n in result.shape):
        return None
    order = order_in_eager(node)
    return None if order is None else _FORMATS.get(order)


def _dependent(gm: GraphModule, chosen: Sequence[Node]) -> list[Node]:
    """The calls of ``chosen``, and all that depends on their results."""
    found: dict[Node, None] = {}
    for node in gm.graph.nodes:
        if node in chosen or (node.op != "output" and any(one in found for one in node.all_input_nodes)):
            found[node] = None
    return list(found)


def _again(node: Node, graph: Graph, made: Made) -> Node:
    """The call with the operands that it needs, which the calls before tell, and the value that tracing has for it."""
    if not tensors(node) or (node.op == "call_function" and not is_torch_function(node.target)):
        raise _NotTracedAgain
    args, kwargs = map_arg((node.args, node.kwargs), made.__getitem__)
    new = graph.create_node(node.op, node.target, args, kwargs)
    new.meta = dict(node.meta)
    if (deciding := _deciding(new)) is not None:
        operand, wanted = deciding
        with graph.inserting_before(new):  # also along axes of one element
            copy = graph.call_method("clone", (operand,), {"memory_format": wanted})
        copy.meta = {**node.meta, "example_value": _value(copy, example(operand).requires_grad)}
        new.replace_input_with(operand, copy)
    differentiable = any(one.requires_grad for one in tensors(node))
    new.meta["example_value"] = _value(new, differentiable)
    if (others := _format_in_eager(new)) is None:
        return new
    laid_out = graph.call_method("clone", (new,), {"memory_format": others})
    laid_out.meta = {**node.meta}
    laid_out.meta["example_value"] = _value(laid_out, differentiable)
    return laid_out


def _value(node: Node, differentiable: bool) -> Any:
    """The fake tensors that a call of fake tensors gives."""
    args, kwargs = map_arg((node.args, node.kwargs), argument)
    try:
        with torch.set_grad_enabled(differentiable):
            return (
                getattr(args[0], node.target)(*args[1:], **kwargs)
                if isinstance(node.target, str)
                else node.target(*args, **kwargs)
            )
    except Exception as error:
        raise _NotTracedAgain from error
