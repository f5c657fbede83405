"""The user's passes: run, and what they return checked, with the first wrong node and the pass by name."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.base.files import graph_text
from lamina.base.fx.torch_private import flatten, graph_module, unflatten
from lamina.base.identity import identity_of, place_of
from lamina.base.passes import Pass
from lamina.base.text import one_line
from lamina.errors import InvalidIR, PassFailed
from lamina.record import Record
from lamina.rewrite.torch_private import fake_mode_of, same_size
from lamina.rewrite.verify import verify_fx

__all__ = ["run_pass"]


def run_pass(gm: GraphModule, function: Pass, place: str, record: Record, name: str) -> GraphModule:
    """``gm`` after a pass of the user's, checked. Raises ``PassFailed``.

    New calls need no ``meta["val"]`` from the pass: what is missing is computed here.
    """
    start = time.perf_counter()
    gm = _run(gm, function, place)
    called = getattr(function, "__name__", type(function).__name__)
    record.add(name, f"pass {called}", time.perf_counter() - start, _Passed(gm, identity_of(function)))
    return gm


class _Passed:
    """The graph after a pass, for the record."""

    __slots__ = ("gm", "identity")

    def __init__(self, gm: GraphModule, identity: str) -> None:
        self.gm, self.identity = gm, identity

    def files(self) -> dict[str, str]:
        return {".py": f"# after {one_line(self.identity)}\n{graph_text(self.gm)}"}


def _run(gm: GraphModule, function: Pass, place: str) -> GraphModule:
    key = "example_value" if place == "captured" else "val"
    inputs = [(n.target, n.meta.get(key)) for n in gm.graph.find_nodes(op="placeholder")]
    outputs = [_value(n, key) for n in _returned(gm)]
    known = {node: (node.target, node.args, node.kwargs) for node in gm.graph.nodes}
    failed = _Failure(function, place)
    try:
        result = function(gm)
    except Exception as error:
        raise failed.raised(error) from error
    if not isinstance(result, GraphModule):
        raise failed(f"returned a {type(result).__name__}", "return the GraphModule it was given, or another one")
    try:
        result.graph.lint()
    except Exception as error:
        why = str(error).partition("\n")[0]  # the rest is the graph
        raise failed(f"left a graph that torch.fx refuses: {why}", "insert nodes before their users") from error
    if not result.graph.find_nodes(op="output"):
        raise failed("left a graph without an output", "keep the output node")
    now = [n.target for n in result.graph.find_nodes(op="placeholder")]
    if now != [target for target, _ in inputs]:
        was = [str(target) for target, _ in inputs]
        raise failed(f"changed the inputs from {was} to {[str(t) for t in now]}", "keep them all")
    for placeholder, (_, value) in zip(result.graph.find_nodes(op="placeholder"), inputs, strict=True):
        placeholder.meta.setdefault(key, value)
    if place != "captured":
        result.graph.eliminate_dead_code()
    for node in _changed(result, known):
        fault = _settle(node, key)
        if fault:
            raise failed(f"made node {node.name!r} ({node.format_node()}), which {fault}", "correct that call")
    _check_outputs(result, outputs, key, failed)
    result = graph_module(result, result.graph)
    if place != "captured":
        try:
            verify_fx(result, f"pass {failed.name}")
        except InvalidIR as error:
            raise failed(f"left a graph that is not functional ATen: {error.what}", "keep to torch.ops.aten") from error
    return result


class _Failure:
    """Errors that name the pass."""

    def __init__(self, function: Pass, place: str) -> None:
        self.name = str(getattr(function, "__name__", type(function).__name__))
        self.at, self.place = place_of(function), place

    def __call__(self, what: str, remedy: str) -> PassFailed:
        return PassFailed(f"pass {self.name!r} ({self.place}) {what}", where=self.at, remedy=remedy)

    def raised(self, error: Exception) -> PassFailed:
        return self(f"raised {type(error).__name__}: {error}", "correct it, or leave it out of the option passes")


def _returned(gm: GraphModule) -> list[Any]:
    leaves, _ = flatten(gm.graph.output_node().args[0])
    return leaves


def _value(item: Any, key: str) -> Any:
    return item.meta.get(key) if isinstance(item, Node) else item


def _changed(gm: GraphModule, known: dict[Node, Any]) -> Iterator[Node]:
    """Calls that the pass made or changed, and those computed from them, in order."""
    touched: set[Node] = set()
    for node in gm.graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        before = known.get(node)
        same = before is not None and before[0] is node.target and before[1:] == (node.args, node.kwargs)
        if not same or not touched.isdisjoint(node.all_input_nodes):
            touched.add(node)
            yield node


def _settle(node: Node, key: str) -> str:
    """Compute what a changed call gives and set its meta; what is wrong with it, "" if nothing."""
    leaves, spec = flatten((node.args, node.kwargs))
    values = [_value(leaf, key) for leaf in leaves]
    lacking = next((n for n in leaves if isinstance(n, Node) and key not in n.meta and n.op != "get_attr"), None)
    if lacking is not None:
        return f"reads {lacking.name!r}, of which nothing is known"
    if any(isinstance(n, Node) and n.op == "get_attr" for n in leaves):
        return "" if key in node.meta else f'reads an attribute and has no meta["{key}"]'
    args, kwargs = unflatten(values, spec)
    try:
        with torch.no_grad(), fake_mode_of(values):
            if isinstance(node.target, str):
                found = getattr(args[0], node.target)(*args[1:], **kwargs)
            else:
                found = node.target(*args, **kwargs)
    except Exception as error:
        return f"fails on its operands: {type(error).__name__}: {error}"
    node.meta[key] = found
    if not node.meta.get("stack_trace"):
        for operand in node.all_input_nodes:
            for name in ("stack_trace", "source", "partitioner_tag"):
                if name in operand.meta:
                    node.meta.setdefault(name, operand.meta[name])
    return ""


def _check_outputs(gm: GraphModule, before: Sequence[Any], key: str, failed: _Failure) -> None:
    now = _returned(gm)
    if len(now) != len(before):
        raise failed(f"changed the number of outputs from {len(before)} to {len(now)}", "return what was returned")
    for place, (item, old) in enumerate(zip(now, before, strict=True)):
        new = _value(item, key)
        if not isinstance(old, torch.Tensor):
            continue
        if not isinstance(new, torch.Tensor) or not _alike(old, new):
            name = item.name if isinstance(item, Node) else item
            raise failed(
                f"changed output {place} from {_described(old)} to {_described(new)}, node {name!r}",
                "keep the dtype and shape of every output",
            )


def _alike(old: torch.Tensor, new: torch.Tensor) -> bool:
    if old.dtype != new.dtype or old.device != new.device or old.dim() != new.dim():
        return False
    return all(same_size(a, b) for a, b in zip(old.shape, new.shape, strict=True))


def _described(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"
