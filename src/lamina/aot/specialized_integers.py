"""Specialization: run-time integers of a captured graph replaced by their values, for calls that take numbers only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.base.captured import example
from lamina.base.fx.copying import Made, Write, copy_nodes
from lamina.base.fx.torch_private import graph_module
from lamina.base.symbolic.torch_private import symbols_of

__all__ = ["fixed_integers", "wants_numbers"]


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
