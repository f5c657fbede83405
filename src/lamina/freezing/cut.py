"""An inference graph cut in two: what depends on parameters and buffers alone, and the rest."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.base.fx.copying import copy_nodes, needed_by
from lamina.base.fx.editing import rebuild
from lamina.base.fx.torch_private import graph_module
from lamina.base.torch_private import OpOverload, schema_of
from lamina.ir.library import is_custom
from lamina.ops.aliasing import makes_view

__all__ = ["PARAMETER", "Cut", "constants", "cut", "hoist"]

PARAMETER = "parameter"
"""Key in ``meta`` of placeholders that are parameters or buffers."""

aten = torch.ops.aten

_COPIES = (aten._to_copy.default, aten.clone.default)


@dataclass(frozen=True, slots=True)
class Cut:
    """``folding`` computes from the inputs at ``sources`` what ``main`` takes after those at ``others``."""

    folding: GraphModule
    main: GraphModule
    sources: tuple[int, ...]
    others: tuple[int, ...]
    nbytes: int

    def text(self) -> str:
        """Both graphs as readable Python."""
        return "\n".join(str(gm.print_readable(print_output=False)) for gm in (self.folding, self.main))


def constants(graph: Graph) -> frozenset[Node]:
    """The nodes of a functional graph that are computed from parameters, buffers and numbers alone.

    What the graph returns, itself or through views, is none: the caller may write to it. Nor is what it writes to.
    """
    written = {node.args[0] for node in graph.nodes if node.target is aten.copy_.default}
    seen = _returned(graph)
    found: set[Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            if node.meta.get(PARAMETER) and node not in written and _is_fixed(node.meta.get("val")):
                found.add(node)
        elif node.op == "get_attr":
            if _is_fixed(node.meta.get("val")):
                found.add(node)
        elif node not in seen and _computes_only(node) and found.issuperset(node.all_input_nodes):
            found.add(node)
    return frozenset(found)


def cut(gm: GraphModule) -> Cut | None:
    """``gm`` in two graphs; None where nothing is worth keeping between calls.

    Kept are operands of library calls, and what kernels would take longer to compute than to read: anything but
    views, and elementwise functions that are larger than what they are computed from.
    """
    known = constants(gm.graph)
    kept = list(dict.fromkeys(base for node in gm.graph.nodes for base in _wanted(node, known)))
    if not kept:
        return None
    folding, sources = _folding(gm, kept)
    main, others = _main(gm, kept)
    nbytes = sum(_bytes(node) for node in kept)
    return Cut(folding, main, sources, others, nbytes)


def hoist(graph: Graph, nodes: Iterable[Node], place: Node) -> None:
    """Move what these ``constants`` are computed by to before ``place``, where it comes later."""
    needed = needed_by(nodes)
    late = False
    for node in list(graph.nodes):
        late = late or node is place
        if late and node in needed and node.op not in ("placeholder", "output"):
            place.prepend(node)


def _wanted(node: Node, known: Set[Node]) -> Iterable[Node]:
    """The values that ``node``, if it is to be computed at each call, wants of what is known."""
    if node in known:
        return
    for operand in node.all_input_nodes:
        base = _viewed(operand)
        if operand in known and base in known and base.op == "call_function" and _pays(base, node, known):
            yield base


def _viewed(node: Node) -> Node:
    """What a chain of views looks at: views stay with their readers."""
    while _is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _is_view(node: Node) -> bool:
    if node.op != "call_function" or node.target is operator.getitem or not makes_view(node.target):
        return False
    return bool(node.args) and isinstance(node.args[0], Node)


def _pays(node: Node, user: Node, known: Set[Node]) -> bool:
    while _is_view(user) and len(user.users) == 1:
        user = next(iter(user.users))
    if not _fuses(user):
        return True
    cone = needed_by([node])
    if not all(n.op != "call_function" or _fuses(n) or _is_view(n) for n in cone):
        return True
    read = sum(_bytes(n) for n in cone if n.op != "call_function")
    return 0 < _bytes(node) <= read


def _fuses(node: Node) -> bool:
    """Whether a kernel computes this on the way, reading nothing twice."""
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    return torch.Tag.pointwise in target.tags or target in _COPIES or not node.all_input_nodes


def _folding(gm: GraphModule, kept: list[Node]) -> tuple[GraphModule, tuple[int, ...]]:
    needed = needed_by(kept)
    graph = Graph()
    places = [place for place, node in enumerate(gm.graph.find_nodes(op="placeholder")) if node in needed]
    made = copy_nodes(graph, (node for node in gm.graph.nodes if node in needed))
    graph.output(tuple(made[node] for node in kept))
    return graph_module(gm, graph), tuple(places)


def _main(gm: GraphModule, kept: list[Node]) -> tuple[GraphModule, tuple[int, ...]]:
    """The rest of the graph, with a placeholder for each value kept, and the places of the inputs it still takes."""
    graph = Graph()
    placeholders = gm.graph.find_nodes(op="placeholder")
    made = copy_nodes(graph, placeholders)
    for number, node in enumerate(kept):
        made[node] = graph.placeholder(f"frozen_{number}")
        made[node].meta = {**{k: v for k, v in node.meta.items() if k in ("val", "source")}, PARAMETER: True}
    copy_nodes(graph, gm.graph.nodes, made)
    main = rebuild(graph_module(gm, graph), {})
    places = []
    for place, (old, node) in enumerate(zip(placeholders, main.graph.find_nodes(op="placeholder"), strict=False)):
        if node.users or not old.meta.get(PARAMETER):
            places.append(place)
        else:
            main.graph.erase_node(node)
    return graph_module(main, main.graph), tuple(places)


def _returned(graph: Graph) -> set[Node]:
    """Nodes that the caller can see or write to: those returned, and what those are views of."""
    seen: set[Node] = set(graph.output_node().all_input_nodes)
    for node in reversed(graph.nodes):
        if node in seen and node.op == "call_function" and makes_view(node.target):
            seen.update(node.all_input_nodes)
    return seen


def _computes_only(node: Node) -> bool:
    """Whether a call is a function of its operands, the same at each call, whose results are plain tensors."""
    if node.op != "call_function" or node.is_impure():
        return False
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else (value,)
    if node.target is operator.getitem:
        return _is_fixed(value)
    if not isinstance(node.target, OpOverload) or is_custom(str(node.target)) or schema_of(node.target).is_mutable:
        return False
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        return False
    return all(v is None or _is_fixed(v) for v in values)


def _is_fixed(value: Any) -> bool:
    """Whether ``value`` is a strided tensor all of whose sizes are numbers."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_quantized:
        return False
    return all(type(n) is int for n in (*value.shape, *value.stride()))


def _bytes(node: Node) -> int:
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0
