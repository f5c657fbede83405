"""Calls whose results nothing uses: eager makes them all the same, with their errors and their random numbers."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.base.aliasing import writes_first
from lamina.base.captured import example, fakes, memory, overloads_named, tensors
from lamina.base.source import operation_name, source_of
from lamina.ops.calls import ANY, FLOATS, FUNCTIONS, NUMBERS, TRUTHS, USUAL

__all__ = ["dead_call"]

_WHOLE = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_COUNTED = _WHOLE | {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_USUAL = _COUNTED | {torch.bool, torch.complex64, torch.complex128}
_RANGES = frozenset({"arange", "linspace"})
"""Calls that make no truth values and no complex numbers."""
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
    """What a result or a write that is seen depends on: one to an input, or to memory that is used later."""
    live: set[Node] = set()
    seen = {place for node in gm.graph.nodes if node.op in ("placeholder", "get_attr") for place in _memories(node)}
    for node in reversed(gm.graph.nodes):
        if node in live or node.op == "output" or _is_seen(node, seen):
            live.add(node)
            live.update(node.all_input_nodes)
            seen.update(place for operand in node.all_input_nodes for place in _memories(operand))
    return live


def _is_seen(node: Node, seen: set[Any]) -> bool:
    """Whether a call writes to memory among ``seen``, or to what is no plain tensor."""
    if not writes_first(node) and "out" not in node.kwargs:
        return False
    written = [n for n in node.all_input_nodes[:1] if writes_first(node)]
    if "out" in node.kwargs:
        written += [n for n in node.all_input_nodes if n not in written]
    places = [place for one in written for place in _memories(one)]
    return not places or not seen.isdisjoint(places)


def _memories(node: Node) -> list[Any]:
    """What tells the memory of a call's results from that of others."""
    return [place for place in map(memory, fakes(node)) if place is not None]


def _gives_tensors(node: Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    return bool(fakes(node))


def _draws(node: Node) -> bool:
    return any(_RANDOM in overload.tags for overload in overloads_named(operation_name(node.target)))


def _lists(node: Node) -> bool:
    """Whether an index is a list of numbers, which tracing takes for a tensor whose values it does not know."""
    found = list(node.args[1:])
    for one in found:
        if isinstance(one, tuple):
            found.extend(one)
    return any(isinstance(one, list) for one in found)


def _holds(node: Node) -> bool:
    """Whether the call, which tracing has accepted, raises for no values of its operands."""
    name = operation_name(node.target)
    if writes_first(node):  # it raises where the other does, or in tracing
        name = name.removesuffix("_")
    given = [t for t in map(example, node.all_input_nodes) if isinstance(t, torch.Tensor)]
    if name == operator.getitem.__name__:
        return len(given) <= 1 and not _lists(node)
    known = FUNCTIONS.get(name)
    holds = known.holds if known is not None else ""
    if holds == ANY:
        return True
    dtypes = {t.dtype for t in given}
    if holds == USUAL:
        made = {t.dtype for t in tensors(node)}
        return dtypes | made <= _USUAL and (name not in _RANGES or made <= _COUNTED)
    if all(d.is_floating_point and d.itemsize > 1 for d in dtypes):
        pointwise = any(
            torch.Tag.pointwise in overload.tags for overload in overloads_named(operation_name(node.target))
        )
        return pointwise or holds in (FLOATS, NUMBERS, TRUTHS) or _draws(node)
    if holds not in (NUMBERS, TRUTHS) or any(d.is_complex for d in dtypes):
        return False
    return dtypes <= _USUAL and (holds == TRUTHS or torch.bool not in dtypes)
