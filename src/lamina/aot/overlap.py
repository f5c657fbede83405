"""Captured graphs that write to memory which is shared otherwise are eager's; which inputs a graph writes to."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.fx import GraphModule, Node

from lamina.aot import eager_reasons
from lamina.base.aliasing import tensors_written
from lamina.base.captured import example, memory
from lamina.base.reasons import Reason
from lamina.base.source import source_of
from lamina.base.write_conflicts import Conflict, has_shared_elements, write_conflict

__all__ = ["how_often_written", "inputs_written", "overlapping_write"]

_REASONS = {
    Conflict.SHARED_ELEMENTS: eager_reasons.SHARED_ELEMENTS,
    Conflict.WRITTEN_TWICE: eager_reasons.WRITTEN_TWICE,
    Conflict.OTHER_ORDER: eager_reasons.OVERLAPPING_WRITE,
    Conflict.READ_AFTER_WRITE: eager_reasons.READ_AFTER_WRITE,
}


def overlapping_write(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: its first write to memory that the same call shares, or None."""
    for part in gm.modules():
        if not isinstance(part, GraphModule):
            continue
        shared = {_storage(n) for n in part.graph.find_nodes(op="placeholder") if has_shared_elements(n)}
        for node in part.graph.nodes:
            conflict = write_conflict(node, shared)
            if conflict is not None:
                return _REASONS[conflict](place=source_of(node))
    return None


def inputs_written(gm: GraphModule) -> tuple[int, ...]:
    """Places of the inputs in whose memory a captured call writes, as far as its name and arguments tell."""
    written = {_storage(one) for node in gm.graph.nodes for one in tensors_written(node)} - {None}
    return tuple(i for i, node in enumerate(gm.graph.find_nodes(op="placeholder")) if _storage(node) in written)


def how_often_written(gm: GraphModule) -> list[int]:
    """For each input how many captured calls write in its memory, as far as their names and arguments tell."""
    counts = Counter(_storage(one) for node in gm.graph.nodes for one in tensors_written(node))
    del counts[None]
    return [counts[_storage(node)] for node in gm.graph.find_nodes(op="placeholder")]


def _storage(node: Node) -> Any:
    """What tells the memory of a captured tensor from that of others."""
    return memory(example(node))
