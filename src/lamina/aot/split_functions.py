"""Custom autograd functions of several results, of which a backward may bring gradients for some only.

Such a function is called with zeros for the gradients that are not there, and gives what it likes of them. Other
derivatives are linear: of a gradient that is not there they make none. A backward graph does not tell which operations
come from such a function.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

from torch.fx import GraphModule, Node

from lamina.aot import eager_reasons
from lamina.base.aliasing import tensors_written
from lamina.base.captured import is_custom_function, tensors
from lamina.base.reasons import Reason
from lamina.base.source import source_of

__all__ = ["split_function"]


def split_function(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: results of a custom function lead to different results of its own.

    None if there is no such function.
    """
    functions = [n for n in gm.graph.nodes if is_custom_function(n)]
    if not functions:
        return None
    ends = {n for n in gm.graph.output_node().all_input_nodes if _has_gradient(n)}
    for function in functions:
        parts = [n for n in function.users if n.target is operator.getitem and _has_gradient(n)]
        reached = [found for part in parts if (found := frozenset(_reached(part, ends)))]
        if len(set(reached)) > 1:
            return eager_reasons.SPLIT_FUNCTION(place=source_of(function))
    return None


def _has_gradient(node: Node) -> bool:
    return any(one.requires_grad for one in tensors(node))


def _reached(part: Node, ends: set[Node]) -> Iterator[Node]:
    """Those of ``ends`` that depend on ``part``, and the calls that write what depends on it to another tensor."""
    seen, pending = {part}, [part]
    while pending:
        node = pending.pop()
        if node in ends or tensors_written(node):
            yield node
        new = [n for n in node.users if n not in seen]
        seen.update(new)
        pending += new
