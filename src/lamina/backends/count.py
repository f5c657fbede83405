"""The backend that counts: how many operations each graph has, which of them fuse, which do not and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.backends.api import Backend
from lamina.base.plurals import counted
from lamina.ir.loops import LibraryCall, Nest
from lamina.lower.to_loops import CannotLower, lower
from lamina.options import Options
from lamina.record import Record
from lamina.schedule.fuse import fuse

__all__ = ["COUNT", "GraphCount", "count_graph"]


@dataclass(frozen=True, slots=True)
class GraphCount:
    """What fusion makes of a graph.

    ``ops`` is the number of operations on tensors. Each of ``groups`` names the operations, at least two, that become
    one kernel; ``singles`` are those that stay alone; ``library`` are (operation, why it is left to a library), and
    ``refused`` says why nothing could be lowered ("" when it could).
    """

    name: str
    ops: int
    groups: tuple[tuple[str, ...], ...]
    singles: tuple[str, ...]
    library: tuple[tuple[str, str], ...]
    refused: str = ""

    def text(self) -> str:
        """The summary line, then one line for each opportunity."""
        lines = [f"Graph: {counted(self.ops, 'op')}, {counted(len(self.groups), 'fusable group')} ({self.name})"]
        if self.refused:
            lines.append(f"  cannot be lowered: {self.refused}")
        lines += [f"  fused: {', '.join(group)}" for group in self.groups]
        lines += [f"  alone: {op}" for op in self.singles]
        lines += [f"  library: {op}{f' ({why})' if why else ''}" for op, why in self.library]
        return "\n".join(lines)


def count_graph(gm: GraphModule, name: str = "graph", numerics: str = "fast") -> GraphCount:
    """Lower and fuse ``gm``, a functional ATen graph, and count what became of its operations."""
    ops = {node.name: _op(node) for node in gm.graph.nodes if _is_op(node)}
    try:
        program = fuse(lower(gm, name, numerics), numerics).program
    except CannotLower as why:
        return GraphCount(name, len(ops), (), tuple(ops.values()), (), str(why))
    groups: list[tuple[str, ...]] = []
    singles: list[str] = []
    library: list[tuple[str, str]] = []
    for step in program.steps:
        if isinstance(step, Nest):
            origins = dict.fromkeys(o for equation in step.body for o in equation.origin if o in ops)
            held = tuple(ops[o] for o in ops if o in origins)
            if len(held) > 1:
                groups.append(held)
            else:
                singles += held
        elif isinstance(step, LibraryCall):
            library.append((step.op.removeprefix("aten."), step.reason))
    return GraphCount(name, len(ops), tuple(groups), tuple(singles), tuple(library))


def _is_op(node: Node) -> bool:
    value = node.meta.get("val")
    made = isinstance(value, torch.Tensor) or (isinstance(value, (tuple, list)) and len(value) > 0)
    return node.op == "call_function" and made and not _takes_out(node)


def _takes_out(node: Node) -> bool:
    source = node.args[0] if node.args else None
    return isinstance(source, Node) and isinstance(source.meta.get("val"), (tuple, list))


def _op(node: Node) -> str:
    return str(node.target).removeprefix("aten.").removesuffix(".default")


def _count(
    gm: GraphModule, example_inputs: Sequence[Any], name: str, options: Options, record: Record
) -> Callable[..., Any]:
    del example_inputs
    found = count_graph(gm, name, options.numerics)
    record.add(name, "count", 0.0, found)
    print(found.text())
    return gm.forward


COUNT = Backend("count", _count)
"""Prints the count of every graph, forward and backward, and runs it through ATen."""
