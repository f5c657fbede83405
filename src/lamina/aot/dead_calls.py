"""Calls whose results nothing uses: eager makes them all the same, with their errors and their random numbers."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

from lamina.aot import eager_reasons
from lamina.base.aliasing import writes_first
from lamina.base.captured import fakes, memory
from lamina.base.reasons import Reason
from lamina.base.source import source_of
from lamina.ops.raising import draws, holds

__all__ = ["dead_call"]


def dead_call(gm: GraphModule, eager_numbers: bool) -> Reason | None:
    """Why the captured graph is eager's to run: a call that nothing depends on and that may raise, or None.

    A functional graph has no place for it. ``eager_numbers``: random numbers are eager's, so each draw counts.
    """
    live = _live(gm)
    for node in gm.graph.nodes:
        if node in live or not _gives_tensors(node):
            continue
        if eager_numbers and draws(node):
            return eager_reasons.UNUSED_DRAW(place=source_of(node))
        if not holds(node):
            return eager_reasons.DEAD_CALL(place=source_of(node))
    return None


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
