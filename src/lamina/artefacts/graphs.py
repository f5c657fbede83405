"""A captured graph of torch's calls as a document of JSON, for what its compiled form leaves to be compiled later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.artefacts.constants import Unstorable, read_constant, written_constant
from lamina.artefacts.names import named, written_name
from lamina.capture.own.torch_private import SET_GRAD, compiling, fake_mode, looking_like, unhooked

__all__ = ["calls_again", "compiled_again", "written_calls", "written_graph"]


def written_graph(gm: GraphModule, inputs: Sequence[Any]) -> dict[str, Any]:
    """A document of a captured graph with ``inputs`` without values. Raises ``Unstorable``."""
    return {**written_calls(gm), "inputs": [*map(_look, inputs)], "grad": torch.is_grad_enabled()}


def written_calls(gm: GraphModule) -> dict[str, Any]:
    """A document of the calls of a graph, which are made one by one. Raises ``Unstorable``."""
    return {"nodes": [_node(node) for node in gm.graph.nodes]}


def calls_again(text: Mapping[str, Any]) -> Callable[..., Any]:
    """The function of the calls of a document."""
    forward: Callable[..., Any] = GraphModule(torch.nn.Module(), _graph(text)).forward
    return forward


def _node(node: Node) -> list[Any]:
    if node.op not in ("placeholder", "call_function", "call_method", "output"):
        raise Unstorable(f"a graph with {node.op}")
    target = written_name(node.target, None, {}) if node.op == "call_function" else str(node.target)
    return [node.op, node.name, target, _written(node.args), _written(node.kwargs)]


def _written(value: Any) -> Any:
    if isinstance(value, Node):
        return {"node": value.name}
    if isinstance(value, dict):
        return {"dict": [[key, _written(part)] for key, part in value.items()]}
    if isinstance(value, (tuple, list)) and type(value) is not torch.Size:
        return {"list" if isinstance(value, list) else "parts": [_written(part) for part in value]}
    if isinstance(value, slice):
        return {"slice": [_written(part) for part in (value.start, value.stop, value.step)]}
    return {"constant": written_constant(value)}


def _look(fake: Any) -> list[Any]:
    if not isinstance(fake, torch.Tensor) or not all(type(size) is int for size in fake.shape):
        raise Unstorable("a graph of varying numbers")
    if fake.is_conj() or fake.is_neg():
        raise Unstorable("a graph of conjugate or negative views")
    return [
        list(fake.shape), list(fake.stride()), fake.storage_offset(), written_constant(fake.dtype), str(fake.device),
        fake.requires_grad,
    ]  # fmt: skip


def compiled_again(text: Mapping[str, Any], compile: Callable[[GraphModule, Sequence[Any]], Any]) -> Any:
    """What ``compile`` makes of the graph of a document, in the grad mode in which it was captured."""
    graph = _graph(text)
    examples = import_module("lamina.capture.own.segment").Examples  # which takes long to load
    gm, mode = GraphModule(torch.nn.Module(), graph), fake_mode()
    with mode, torch.no_grad():
        fakes = [_fake(look) for look in text["inputs"]]
    before = torch.is_grad_enabled()
    SET_GRAD(text["grad"])
    try:
        for node, fake in zip(graph.find_nodes(op="placeholder"), fakes, strict=True):
            node.meta["example_value"] = fake
        with mode, unhooked():
            examples(gm).run(*fakes)
        SET_GRAD(text["grad"])
        with compiling(mode):
            return compile(gm, fakes)
    finally:
        SET_GRAD(before)


def _graph(text: Mapping[str, Any]) -> Graph:
    graph, values = Graph(), dict[str, Node]()
    for op, name, target, args, kwargs in text["nodes"]:
        found = named(target, None) if op == "call_function" else target
        values[name] = graph.create_node(op, found, _read(args, values), _read(kwargs, values), name=name)
    return graph


def _fake(look: list[Any]) -> torch.Tensor:
    shape, stride, offset, dtype, device, requires_grad = look
    extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    memory = torch.empty(offset + max(extent, 0), dtype=read_constant(dtype), device=device)
    made: torch.Tensor = looking_like(memory.as_strided(shape, stride, offset))
    return made.requires_grad_(requires_grad)


def _read(text: Mapping[str, Any], values: Mapping[str, Node]) -> Any:
    ((kind, value),) = text.items()
    if kind == "node":
        return values[value]
    if kind == "dict":
        return {key: _read(part, values) for key, part in value}
    if kind == "constant":
        return read_constant(value)
    parts = [_read(part, values) for part in value]
    return parts if kind == "list" else slice(*parts) if kind == "slice" else tuple(parts)
