"""Graphs as text for comparison: a line for each call, with its result's type and the user's line.

A report has a text of each graph after each rewrite. These cost a fraction of the module of Python that
``lamina.base.files.graph_text`` makes, which can be run.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.base.source import source_of
from lamina.base.torch_private import OpOverload

__all__ = ["brief_text"]

Ends = dict[tuple[int, int, int], tuple[str, str]]
"""Types and lines that were written, by value, the node's place and what it calls, all of which the graphs keep."""


def brief_text(graph: Graph, owner: GraphModule, ends: Ends) -> str:
    """A graph of ``owner``, with the graphs that it calls indented below it. ``ends`` serve the next one, too."""
    return "\n".join([*_lines(graph, owner, ends), ""])


def _lines(graph: Graph, owner: GraphModule, ends: Ends) -> Iterator[str]:
    called: dict[str, GraphModule] = {}
    for node in graph.nodes:
        if node.op == "output":
            yield f"return {node.args[0]!r}"
            continue
        if node.op in ("get_attr", "call_module"):
            inner = getattr(owner, str(node.target), None)
            if isinstance(inner, GraphModule):
                called[str(node.target)] = inner
        kind, place = _end(node, ends)
        yield f"{node.name}{kind} = {_call(node)}{place}"
    for name, inner in called.items():
        yield f"graph {name}:"
        yield from (f"    {line}" for line in _lines(inner.graph, inner, ends))


def _call(node: Node) -> str:
    if node.op == "placeholder":
        return "input"
    if node.op == "get_attr":
        return f"self.{node.target}"
    given = [repr(arg) for arg in node.args]
    given += [f"{name}={value!r}" for name, value in node.kwargs.items()]
    if node.op == "call_method":
        return f"{given[0]}.{node.target}({', '.join(given[1:])})"
    target = f"self.{node.target}" if node.op == "call_module" else _function(node.target)
    return f"{target}({', '.join(given)})"


def _function(target: object) -> str:
    if isinstance(target, OpOverload):
        return str(target)
    module, name = getattr(target, "__module__", ""), getattr(target, "__name__", str(target))
    return f"{module}.{name}" if module else name


def _end(node: Node, ends: Ends) -> tuple[str, str]:
    """The type of a node's result, and the user's line as a comment."""
    value = node.meta.get("val", node.meta.get("example_value"))
    key = id(value), id(node.meta.get("source") or node.meta.get("stack_trace")), id(node.target)
    found = ends.get(key)
    if found is None:
        place = "" if node.op in ("placeholder", "get_attr") else source_of(node).strip()
        found = ends[key] = (f": {_type(value)}" if value is not None else "", f"  # {place}" if place else "")
    return found


def _type(value: object) -> str:
    if isinstance(value, torch.Tensor):
        sizes = ", ".join(map(str, value.shape))
        return f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_type, value))})"
    return type(value).__name__
