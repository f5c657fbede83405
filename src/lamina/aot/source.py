"""Where in the user's code a node of an ATen graph comes from."""

from __future__ import annotations

import re
from typing import Any

from torch.fx import Graph, Node

__all__ = ["annotate_sources", "source_of"]

_FRAME = re.compile(r'File "([^"]*)", line (\d+)')


def annotate_sources(graph: Graph) -> None:
    """Set ``meta["source"]`` of every call to "file.py:line operation", once; "" where the trace does not say.

    The place is the innermost user frame of the recorded stack (AOTAutograd gives a backward node the stack of
    its forward node), the operation the torch function the user called.
    """
    places: dict[str, str] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "output") or "source" in node.meta:
            continue
        stack = node.meta.get("stack_trace")
        if not stack:
            node.meta["source"] = _borrowed(node)
            continue
        place = places.get(stack)
        if place is None:
            place = places[stack] = _place(stack)
        node.meta["source"] = f"{place} {_operation(node)}"


def source_of(node: Node) -> str:
    """The same text for one node of a captured graph."""
    calls = node.meta.get("source_fn_stack")
    operation = _name(calls[-1][1]) if calls else _name(node.target)
    return f"{_place(node.meta.get('stack_trace') or '')} {operation}"


def _place(stack: str) -> str:
    start = stack.rfind('File "')
    match = _FRAME.match(stack, start) if start >= 0 else None
    if match is None:
        return ""
    path, line = match.groups()
    return f"{path.replace(chr(92), '/').rsplit('/', 1)[-1]}:{line}"


def _operation(node: Node) -> str:
    """The user's call ("gelu", "LayerNorm backward"); the ATen operation where that is not known."""
    meta = node.meta
    calls = meta.get("source_fn_stack")
    if calls:
        return _name(calls[-1][1])
    calls = meta.get("fwd_source_fn_stack")
    if calls:
        return f"{_name(calls[-1][1])} backward"
    return _name(meta.get("original_aten", node.target))


def _name(call: Any) -> str:
    if isinstance(call, str):
        return call
    packet = getattr(call, "_overloadpacket", call)
    return str(getattr(packet, "__name__", packet))


def _borrowed(node: Node) -> str:
    """A node added by functionalization (a trailing copy_) belongs to what it copies."""
    for other in reversed(node.all_input_nodes):
        if other.meta.get("source"):
            return str(other.meta["source"])
    return ""
