"""Where in the user's code a captured call comes from."""

from __future__ import annotations

import os
import re
from typing import Any

from torch.fx import Graph, Node

from lamina.base.torch_private import packet_of

__all__ = ["name_users_lines", "operation_name", "place_in", "source_of"]

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_FRAME = re.compile(r'File "([^"]*)", line (\d+)')


def source_of(node: Node) -> str:
    """The text "file.py:line operation" for one node of a captured graph; what the node says of itself comes first."""
    said = node.meta.get("source")
    if said is not None:
        return str(said)
    calls = node.meta.get("source_fn_stack")
    operation = operation_name(calls[-1][1]) if calls else operation_name(node.target)
    return f"{place_in(node.meta.get('stack_trace') or '')} {operation}"


def place_in(stack: str) -> str:
    """The innermost frame of a recorded stack as "file.py:line"; "" if there is none."""
    start = stack.rfind('File "')
    match = _FRAME.match(stack, start) if start >= 0 else None
    if match is None:
        return ""
    path, line = match.groups()
    return f"{path.replace(chr(92), '/').rsplit('/', 1)[-1]}:{line}"


def _without_own_frames(stack: str) -> str:
    """A recorded stack without the frames of Lamina's own files, unless there are no others."""
    if _OWN not in stack:
        return stack
    entries = re.split(r'^(?=  File ")', stack, flags=re.MULTILINE)
    kept = [entry for entry in entries if not entry.startswith(f'  File "{_OWN}')]
    return "".join(kept) if any(entry.startswith("  File") for entry in kept) else stack


def name_users_lines(graph: Graph) -> None:
    """Take frames of Lamina's own files, such as a compiled module's call, out of the stacks of a captured graph."""
    changed: dict[str, str] = {}
    for node in graph.nodes:
        stack = node.meta.get("stack_trace")
        if stack and _OWN in stack:
            if stack not in changed:
                changed[stack] = _without_own_frames(stack)
            node.meta["stack_trace"] = changed[stack]


def operation_name(call: Any) -> str:
    """The short name of a function, method or operator."""
    packet = packet_of(call)
    name = call if isinstance(call, str) else str(getattr(packet, "__name__", packet))
    return _COMPARISONS.get(name, name)


_COMPARISONS = {f"__{name}__": name for name in ("eq", "ne", "lt", "le", "gt", "ge")}
"""Names that captured graphs may have for comparisons by operators, and those of the functions that do the same."""
