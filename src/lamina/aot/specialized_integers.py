"""Specialization: run-time integers of a captured graph replaced by their values, for calls that take numbers only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.aot.torch_private import calls_numpy
from lamina.base.captured import example
from lamina.base.fx.copying import Made, Write, copy_nodes
from lamina.base.fx.torch_private import graph_module
from lamina.base.symbolic.torch_private import symbols_of

__all__ = ["fixed_integers", "wants_numbers", "with_numbers_as_data"]

_LEGACY = ("Byte", "Char", "Short", "Int", "Long", "Half", "BFloat16", "Float", "Double", "Bool")
_FROM_DATA = (torch.as_tensor, torch.asarray, torch.tensor, *(getattr(torch, f"{kind}Tensor") for kind in _LEGACY))
"""Functions that make a tensor of data; the method ``new_tensor`` is another."""


def wants_numbers(error: Exception) -> bool:
    """Whether tracing failed because torch has a formula, or an operation on numbers, that takes no symbols."""
    formula = "INTERNAL ASSERT" in str(error) and "Scalar.h" in str(error)
    return formula or (isinstance(error, AttributeError) and "ReferenceAnalysis" in str(error))


def fixed_integers(gm: GraphModule) -> Iterator[GraphModule]:
    """The graph with the numbers that are given to it, then with its sizes as well, as they are in this call.

    Reading a number's value guards it, so that a call with another one compiles again. A graph is only there where
    something was replaced.
    """
    sizes = {s for n in gm.graph.find_nodes(op="placeholder") for s in symbols_of(_sizes(n))}
    given = [n for n in gm.graph.find_nodes(op="placeholder") if isinstance(example(n), torch.SymInt)]
    numbers = [n for n in given if not sizes & set(symbols_of(example(n)))]
    for chosen in (numbers, given):
        if chosen:
            yield _fixed(gm, {n.name: int(example(n)) for n in chosen})


def with_numbers_as_data(gm: GraphModule) -> GraphModule:
    """The graph with the values of run-time integers where they are data of tensors, with their guards.

    ``as_tensor`` and its like, and NumPy's functions, which call it, take the value themselves, but only 32 bits of it.
    """
    graph = Graph()
    numbers = {n for n in gm.graph.nodes if isinstance(example(n), torch.SymInt)}
    chosen = {n for n in gm.graph.nodes if _takes_data(n) and not numbers.isdisjoint(n.all_input_nodes)}
    if not chosen:
        return gm
    made: Made = {}

    def reading(operand: Node) -> Any:
        return int(example(operand)) if operand in numbers else made[operand]

    copy_nodes(graph, gm.graph.nodes, made, reading=dict.fromkeys(chosen, reading))
    return graph_module(gm, graph, with_meta=False)


def _takes_data(node: Node) -> bool:
    if node.op == "call_method":
        return node.target == "new_tensor"
    return node.op == "call_function" and (node.target in _FROM_DATA or calls_numpy(node.target))


def _sizes(node: Node) -> tuple[Any, ...]:
    value = example(node)
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def _fixed(gm: GraphModule, values: dict[str, int]) -> GraphModule:
    graph = Graph()
    inputs = gm.graph.find_nodes(op="placeholder")
    writes: dict[Node, Write] = {n: partial(_number, n, values[n.name]) for n in inputs if n.name in values}
    copy_nodes(graph, gm.graph.nodes, writes=writes)
    return graph_module(gm, graph, with_meta=False)


def _number(node: Node, value: int, graph: Graph, made: Made) -> int:
    """The input stays; a number stands for it."""
    graph.node_copy(node, made.__getitem__)
    return value
