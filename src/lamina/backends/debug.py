"""The backend that shows: each graph it is given as a table of operations, shapes and dtypes, then run as it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.backends.api import Backend
from lamina.base.plurals import counted
from lamina.base.tables import Table, plain_console

__all__ = ["DEBUG", "described", "graph_table", "print_graph"]

_WIDTH = 140
"""Columns of output that goes to a file or a pipe."""


def graph_table(gm: GraphModule, title: str = "Graph") -> Table:
    """The inputs, calls and outputs of a graph with what is known of their values and the user's lines."""
    calls = sum(1 for node in gm.graph.nodes if node.op == "call_function")
    table = Table(title=f"{title}: {counted(calls, 'call')}", title_justify="left")
    for column in ("name", "operation", "inputs", "shape", "dtype", "device", "from"):
        table.add_column(column, overflow="fold")
    for node in gm.graph.nodes:
        operation = str(node.target) if node.op in ("call_function", "call_method", "call_module") else node.op
        inputs = ", ".join(n.name for n in node.all_input_nodes)
        shape, dtype, device = described(node)
        table.add_row(node.name, operation, inputs, shape, dtype, device, str(node.meta.get("source", "")))
    return table


def described(node: Node) -> tuple[str, str, str]:
    """Shape, dtype and device of a node's value, in words; of each value where there are several."""
    value = node.meta.get("val", node.meta.get("example_value"))
    several = [v for v in (value if isinstance(value, (tuple, list)) else (value,)) if v is not None]
    shapes = ", ".join(_shape(v) for v in several)
    tensors = [v for v in several if isinstance(v, torch.Tensor)]
    dtypes = ", ".join(dict.fromkeys(str(v.dtype).removeprefix("torch.") for v in tensors))
    return shapes, dtypes, ", ".join(dict.fromkeys(str(v.device) for v in tensors))


def print_graph(gm: GraphModule, title: str = "Graph") -> GraphModule:
    """Print the table of ``gm`` and give it back: a pass that changes nothing."""
    terminal = sys.stdout.isatty()
    plain_console(width=None if terminal else _WIDTH).print(graph_table(gm, title))
    return gm


def _shape(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "x".join(str(size) for size in value.shape) or "scalar"
    return str(value)


def _debug(gm: GraphModule, example_inputs: Sequence[Any], name: str) -> Callable[..., Any]:
    del example_inputs
    return print_graph(gm, name).forward


DEBUG = Backend("debug", _debug)
"""Prints every graph, forward and backward, and runs it through ATen."""
