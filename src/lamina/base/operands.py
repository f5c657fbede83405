"""Calls that return an operand itself, where tracing has them return a copy: the operand stands for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from lamina.base.aliasing import writes_first
from lamina.base.captured import argument, example, fakes, memory
from lamina.base.fx.copying import copy_nodes

__all__ = ["with_operands"]


def with_operands(gm: GraphModule, same: Mapping[Node, Node]) -> Graph:
    """The graph of ``gm`` with the operand ``same[call]`` in the place of each such call.

    What was traced as a view of a copy is traced again, as a view of the operand: whether two tensors share memory is
    asked of their fake tensors.
    """
    copies = {memory(example(call)) for call in same} - {memory(example(operand)) for operand in same.values()} - {None}
    graph = Graph()
    for node, copied in copy_nodes(graph, gm.graph.nodes, stand_in=same).items():
        if node in same:
            continue
        if node.op.startswith("call_") and any(memory(one) in copies for one in fakes(node)):
            copied.meta["example_value"] = _traced_again(copied)
    return graph


def _traced_again(node: Node) -> Any:
    """What tracing gives for a call of the operands that it has now."""
    if node.args and writes_first(node):
        return map_arg(node.args[0], argument)
    args, kwargs = map_arg((node.args, node.kwargs), argument)
    function = getattr(type(args[0]), node.target) if isinstance(node.target, str) else node.target
    with fakes(node)[0].fake_mode:
        return function(*args, **kwargs)
