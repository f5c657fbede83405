"""Where in the user's code a node of an ATen graph comes from."""

from __future__ import annotations

from torch.fx import Graph, Node

from lamina.base.source import operation_name, place_in

__all__ = ["annotate_sources"]


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
            place = places[stack] = place_in(stack)
        node.meta["source"] = f"{place} {_operation(node)}"


def _operation(node: Node) -> str:
    """The user's call ("gelu", "LayerNorm backward"); the ATen operation where that is not known."""
    meta = node.meta
    calls = meta.get("source_fn_stack")
    if calls:
        return operation_name(calls[-1][1])
    calls = meta.get("fwd_source_fn_stack")
    if calls:
        return f"{operation_name(calls[-1][1])} backward"
    return operation_name(meta.get("original_aten", node.target))


def _borrowed(node: Node) -> str:
    """A node added by functionalization (a trailing copy_) belongs to what it copies."""
    for other in reversed(node.all_input_nodes):
        if other.meta.get("source"):
            return str(other.meta["source"])
    return ""
