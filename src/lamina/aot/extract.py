"""Cutting a joint graph into a forward and a backward graph once it is known what is saved."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.aot.torch_private import binding_nodes, graph_module, symbols_of

__all__ = ["Effects", "Split", "extract"]


@dataclass(frozen=True, slots=True)
class Effects:
    """Nodes of a joint graph that count for what they do: random draws, checks, writes to inputs.

    ``forward`` and ``backward`` list them by side in the joint graph's order; ``copies`` are those of the forward
    that write to inputs, ``mutated`` the inputs they write to.
    """

    forward: tuple[Node, ...]
    backward: tuple[Node, ...]
    copies: tuple[Node, ...]
    mutated: frozenset[Node]


@dataclass(frozen=True, slots=True)
class Split:
    """The two graphs and, in joint-graph nodes, the tensors and then the symbols that pass between them."""

    forward: GraphModule
    backward: GraphModule
    saved: tuple[Node, ...]


def extract(
    joint: GraphModule,
    forward_outputs: int,
    saved: Sequence[Node],
    effects: Effects,
) -> Split:
    """The forward graph returns its outputs, then saved tensors, then saved symbols; the backward graph takes the
    symbols, the tensors and the tangents, in AOTAutograd's order.

    A saved input that the forward mutates is saved as a clone made before the mutation.
    """
    output = joint.graph.output_node()
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    descriptions = list(output.meta.get("desc") or [None] * len(results))
    placeholders = joint.graph.find_nodes(op="placeholder")
    tangents = [n for n in placeholders if "tangents" in str(n.target)]
    primals = [n for n in placeholders if "tangents" not in str(n.target)]

    wanted = results[forward_outputs:]
    tensors, symbols = _used([*wanted, *effects.backward], saved, tangents)
    symbols = _with_bindings(joint.graph, symbols, tensors, tangents)

    backward = Graph()
    made = _inputs(backward, [*symbols, *tensors, *tangents])
    for node in tensors:
        # What the forward made is the backward's to write over, once it finds that nobody else holds it.
        made[node].meta["donated"] = node.op == "call_function"
    moves = not any(n.is_impure() for n in effects.backward)
    _body(backward, made, [*wanted, *effects.backward], joint.graph, lazily=moves)
    backward.output(tuple(made[n] if isinstance(n, Node) else n for n in wanted))
    backward.output_node().meta["desc"] = descriptions[forward_outputs:]
    for node in backward.nodes:
        if node.op in ("call_function", "get_attr"):
            node.meta["autograd_backward"] = True

    forward = Graph()
    made = _inputs(forward, primals)
    kept = [*results[:forward_outputs], *tensors, *symbols]
    _body(forward, made, [n for n in (*kept, *effects.forward) if n not in effects.copies], joint.graph, lazily=False)
    clones = {n: _clone(forward, n, made[n]) for n in tensors if n in effects.mutated}
    _body(forward, made, effects.copies, joint.graph, lazily=False)
    passed = [clones.get(n) or made[n] for n in (*tensors, *symbols)]
    forward.output((*(made[n] if isinstance(n, Node) else n for n in results[:forward_outputs]), *passed))
    forward.output_node().meta["desc"] = descriptions[:forward_outputs] + [None] * len(passed)
    return Split(graph_module(joint, forward), graph_module(joint, backward), (*tensors, *symbols))


def _used(wanted: Sequence[Any], saved: Sequence[Node], tangents: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """The saved values that the backward reads: tensors (those without a version check last) and symbols."""
    stops = {*saved, *tangents}
    reached: set[Node] = set()
    stack = [n for n in wanted if isinstance(n, Node)]
    while stack:
        node = stack.pop()
        if node in reached:
            continue
        reached.add(node)
        if node not in stops:
            stack.extend(node.all_input_nodes)
    live = [n for n in saved if n in reached]
    tensors = [n for n in live if isinstance(n.meta.get("val"), torch.Tensor)]
    tensors.sort(key=lambda n: bool(n.meta.get("saved_tensor_with_no_vc_check", False)))
    return tensors, [n for n in live if not isinstance(n.meta.get("val"), torch.Tensor)]


def _with_bindings(
    graph: Graph, symbols: Sequence[Node], tensors: Sequence[Node], tangents: Sequence[Node]
) -> list[Node]:
    """``symbols`` preceded by the node of every symbol that a backward input's sizes mention."""
    bound = binding_nodes(graph)
    if not bound:
        return list(symbols)
    binders = {node: symbol for symbol, node in bound.items()}
    found = [n for n in symbols if n in binders]
    have = {binders[n] for n in found}
    derived = [n for n in symbols if n not in binders]
    for node in itertools.chain(derived, tensors, tangents):
        for symbol in symbols_of(node.meta.get("val")):
            if symbol in bound and symbol not in have:
                have.add(symbol)
                found.append(bound[symbol])
    return found + derived


def _inputs(graph: Graph, nodes: Sequence[Node]) -> dict[Node, Node]:
    """Placeholders of ``graph`` standing for ``nodes``."""
    made: dict[Node, Node] = {}
    for node in nodes:
        made[node] = graph.placeholder(node.name)
        made[node].meta = dict(node.meta)
    return made


def _body(graph: Graph, made: dict[Node, Node], roots: Sequence[Any], joint: Graph, *, lazily: bool) -> None:
    """Copy ``roots`` and all they still need from ``joint``, in its order.

    ``lazily`` takes one root after the other instead: what the backward computes again it then computes where it is
    first needed, and holds no longer than that.
    """
    order = {node: i for i, node in enumerate(joint.nodes)}
    missing = sorted({n for n in roots if isinstance(n, Node) and n not in made}, key=order.__getitem__)
    for group in [[root] for root in missing] if lazily else [missing]:
        needed = set(group)
        stack = list(group)
        while stack:
            for operand in stack.pop().all_input_nodes:
                if operand not in made and operand not in needed:
                    needed.add(operand)
                    stack.append(operand)
        for node in sorted(needed, key=order.__getitem__):
            if node not in made:
                made[node] = graph.node_copy(node, made.__getitem__)


def _clone(graph: Graph, old: Node, source: Node) -> Node:
    """A copy of an input, which the backward needs as it was before the forward's mutations."""
    clone = graph.call_function(torch.ops.aten.clone.default, (source,))
    clone.meta = {**old.meta, "source": old.meta.get("source", "")}
    return clone
