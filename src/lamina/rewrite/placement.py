"""Tensors that a program makes on the CPU of numbers alone and reads on a GPU: made where they are read.

Buckets of relative positions are often computed so (``torch.arange`` without a device, and ``.to(x.device)`` in the
end). On the CPU they cost a kernel there, a copy that the host waits for, and the recording of launches, which takes
none that it has to wait in. On the GPU they are part of the kernel that reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from lamina.base.decision import Decision
from lamina.base.devices import Where, kind_of, queued
from lamina.base.fx.editing import rebuild
from lamina.base.fx.torch_private import graph_module
from lamina.base.source import source_of
from lamina.base.torch_private import OpOverload, schema_of
from lamina.ops.aliasing import makes_view
from lamina.rewrite.reasons import MADE_ON_DEVICE
from lamina.rewrite.torch_private import fake_mode_of

__all__ = ["made_where_read"]

aten = torch.ops.aten

_COPY = aten._to_copy.default


def made_where_read(
    gm: GraphModule, note: Callable[[Decision], None] = lambda decision: None, where: Where = queued
) -> GraphModule:
    """Tensors made of numbers on the CPU and copied to a device ``where`` it pays made there; ``gm`` itself if none is.

    Functions are those of the device: beside rounding, values are what they were.
    """
    places = {value.device for node in gm.graph.nodes for value in _tensors(node) if where(kind_of(value))}
    if len(places) != 1:
        return gm
    (place,) = places
    moved = _movable(gm, place)
    copies = gm.graph.find_nodes(op="call_function", target=_COPY)
    arrivals = [n for n in copies if n.args[0] in moved and n not in moved]
    if not arrivals:
        return gm
    for node in moved:
        _move(node, place)
    stand_in = {n: _source(n) for n in arrivals if _only_moves(n)}
    for node in arrivals:
        note(Decision("placement", (source_of(node),), True, MADE_ON_DEVICE()))
    return rebuild(graph_module(gm, gm.graph), stand_in)


def _movable(gm: GraphModule, place: torch.device) -> list[Node]:
    """Calls on the CPU that hang on numbers alone, and whose readers are moved as well or are copies to ``place``."""
    nodes: set[Node] = set()
    for node in gm.graph.nodes:
        if _computes_on_cpu(node) and _all_moved(node, nodes):
            nodes.add(node)
    while True:
        kept = {n for n in nodes if _all_moved(n, nodes) and all(u in nodes or _arrives(u, place) for u in n.users)}
        if kept == nodes:
            return [node for node in gm.graph.nodes if node in kept]
        nodes = kept


def _all_moved(node: Node, moved: set[Node]) -> bool:
    return all(n in moved or _is_number(n) for n in node.all_input_nodes)


def _computes_on_cpu(node: Node) -> bool:
    """Whether a call gives one tensor on the CPU, a function of its operands, element by element or of numbers."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload) or schema_of(target).is_mutable:
        return False
    values = _tensors(node)
    if len(values) != 1 or not kind_of(values[0]).host or node.meta.get("val") is not values[0]:
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or target.namespace != "aten":
        return False
    creates = any(argument.name == "device" for argument in schema_of(target).arguments)  # of numbers, or like a tensor
    made_of_tensors = any(_tensors(n) for n in node.all_input_nodes)
    return creates or (made_of_tensors and (torch.Tag.pointwise in target.tags or makes_view(target)))


def _arrives(node: Node, place: torch.device) -> bool:
    """Whether a call copies its operand to ``place``."""
    return node.target is _COPY and _tensors(node)[0].device == place


def _move(node: Node, place: torch.device) -> None:
    """Let a call of the CPU run on ``place``."""
    made_of_tensors = any(_tensors(n) for n in node.all_input_nodes)
    kwargs = {name: value for name, value in node.kwargs.items() if name != "pin_memory"}
    if not made_of_tensors or "device" in kwargs:
        kwargs["device"] = place
    node.kwargs = kwargs
    args, named = map_arg((node.args, node.kwargs), lambda operand: operand.meta["val"])
    with fake_mode_of([node.meta["val"]]):
        node.meta["val"] = node.target(*args, **named)  # type: ignore[operator]


def _only_moves(node: Node) -> bool:
    """Whether a copy changes nothing but the device."""
    source, value = _source(node).meta["val"], node.meta["val"]
    same: bool = source.dtype == value.dtype and source.stride() == value.stride()
    return same and not any(makes_view(user.target) for user in node.users)  # so that results share no memory


def _source(node: Node) -> Node:
    source = node.args[0]
    assert isinstance(source, Node)
    return source


def _is_number(node: Node) -> bool:
    return isinstance(node.meta.get("val"), int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool)


def _tensors(node: Node) -> list[Tensor]:
    value: Any = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    return [v for v in values if isinstance(v, Tensor)]
