"""Cutting a joint graph into a forward and a backward graph once it is known what is saved."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.aot.packed import Packed
from lamina.aot.reuse import Reuse
from lamina.aot.torch_private import binding_nodes
from lamina.base.fx.copying import copy_nodes, needed_by
from lamina.base.fx.torch_private import graph_module
from lamina.base.row_digest import row_digest, unless_changed
from lamina.base.symbolic.torch_private import symbols_of

__all__ = ["Effects", "Split", "extract", "used"]


@dataclass(frozen=True, slots=True)
class Effects:
    """Nodes of a joint graph that count for what they do: random draws, checks, writes to inputs.

    ``forward`` and ``backward`` list them by side in the joint graph's order; ``copies`` are those of the forward
    that write to inputs, ``mutated`` the inputs they write to. Of what is ``copied``,
    those included, a copy is saved.
    """

    forward: tuple[Node, ...]
    backward: tuple[Node, ...]
    copies: tuple[Node, ...]
    mutated: frozenset[Node]
    copied: frozenset[Node]


@dataclass(frozen=True, slots=True)
class Split:
    """The two graphs and, in joint-graph nodes, the tensors and then the symbols that pass between them.

    ``rereading`` is the backward that reads returned tensors, if there are such. Each of ``packed`` is one tensor.
    """

    forward: GraphModule
    backward: GraphModule
    saved: tuple[Node, ...]
    rereading: GraphModule | None = None
    packed: tuple[Packed, ...] = ()


def extract(
    joint: GraphModule,
    forward_outputs: int,
    saved: Sequence[Node],
    effects: Effects,
    reuses: Sequence[Reuse] = (),
    packed: Sequence[Packed] = (),
    witnesses: Mapping[Node, Sequence[Node]] | None = None,
) -> Split:
    """The forward graph returns its outputs, then saved tensors, then saved symbols; the backward graph takes the
    symbols, the tensors and the tangents, in AOTAutograd's order.

    What is in ``effects.copied`` is saved as a clone, which is made before any mutation. For each of ``reuses`` the
    forward returns a digest after the saved tensors; before the tangents a second backward takes those, and then
    the tensors, which it computes again where their digest is another one. What is ``packed`` stands at the place of
    the first of it. ``witnesses`` are saved for their versions, read or not, each for tensors in its memory.
    """
    output = joint.graph.output_node()
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    placeholders = joint.graph.find_nodes(op="placeholder")
    tangents = [n for n in placeholders if "tangents" in str(n.target)]
    primals = [n for n in placeholders if "tangents" not in str(n.target)]

    witnesses = witnesses or {}
    wanted = [*results[forward_outputs:], *witnesses, *effects.backward]
    tensors, symbols = used(wanted, [*saved, *witnesses], tangents)
    symbols = _with_bindings(joint.graph, symbols, tensors, tangents)

    together = [found for pack in packed if (found := pack.among(tensors)) is not None]
    passed = _Passed(tuple(symbols), tuple(tensors), tuple(tangents), tuple(together), witnesses)
    backward = _backward(joint, forward_outputs, passed, effects, ())
    rereading = _backward(joint, forward_outputs, passed, effects, reuses) if reuses else None

    forward = Graph()
    made = _inputs(forward, primals)
    kept = [*results[:forward_outputs], *tensors, *symbols]
    _body(forward, made, [n for n in (*kept, *effects.forward) if n not in effects.copies], joint.graph, lazily=False)
    digests = [_call(forward, reuse.node, row_digest, made[reuse.node]) for reuse in reuses]
    clones = {n: _clone(forward, n, made[n]) for n in tensors if n in effects.copied}
    bytes_of = {pack.nodes[0]: pack.write(forward, made) for pack in together}
    _body(forward, made, effects.copies, joint.graph, lazily=False)
    kept = [bytes_of.get(n) or clones.get(n) or made[n] for n in passed.kept]
    handed = [*kept, *digests, *(made[n] for n in symbols)]
    forward.output((*(made[n] if isinstance(n, Node) else n for n in results[:forward_outputs]), *handed))
    forward.output_node().meta["desc"] = _descriptions(output)[:forward_outputs] + [None] * len(handed)
    return Split(
        graph_module(joint, forward, with_meta=False), backward, (*tensors, *symbols), rereading, passed.packed
    )


@dataclass(frozen=True, slots=True)
class _Passed:
    """What the backward is given, in joint-graph nodes."""

    symbols: tuple[Node, ...]
    tensors: tuple[Node, ...]
    tangents: tuple[Node, ...]
    packed: tuple[Packed, ...]
    witnesses: Mapping[Node, Sequence[Node]]

    @property
    def kept(self) -> list[Node]:
        """The tensors, without those that are packed with one before."""
        gone = {n for pack in self.packed for n in pack.nodes[1:]}
        return [n for n in self.tensors if n not in gone]


def _descriptions(output: Node) -> list[Any]:
    return list(output.meta.get("desc") or [None] * len(output.args[0]))  # type: ignore[arg-type]


def _backward(
    joint: GraphModule, forward_outputs: int, passed: _Passed, effects: Effects, reuses: Sequence[Reuse]
) -> GraphModule:
    output = joint.graph.output_node()
    wanted: list[Any] = list(output.args[0])[forward_outputs:]  # type: ignore[arg-type]
    backward = Graph()
    made = _inputs(backward, [*passed.symbols, *passed.kept])
    for node in passed.kept:
        # What the forward made is the backward's to write over, once it finds that nobody else holds it.
        made[node].meta["donated"] = node.op == "call_function"
        if node in effects.copied:
            made[node].meta["val"] = _copied(node)
        if node in passed.witnesses:
            made[node].meta["tells_of"] = frozenset(n.name for n in passed.witnesses[node])
    digests = [_placeholder(backward, reuse.node, f"{reuse.node.name}_digest") for reuse in reuses]
    seen = [_placeholder(backward, reuse.node, f"{reuse.node.name}_seen") for reuse in reuses]
    made.update(_inputs(backward, passed.tangents))
    for pack in passed.packed:
        given = made[pack.nodes[0]]
        given.meta["val"] = pack.value()
        made.update(pack.read(backward, given))
    for reuse, digest, tensor in zip(reuses, digests, seen, strict=True):
        digest.meta["val"] = row_digest(tensor.meta["val"])
        _body(backward, made, [reuse.node], joint.graph, lazily=False)
        made[reuse.node] = _call(backward, reuse.node, unless_changed, tensor, digest, made[reuse.node])
    moves = not any(n.is_impure() for n in effects.backward)
    _body(backward, made, [*wanted, *effects.backward], joint.graph, lazily=moves)
    backward.output(tuple(made[n] if isinstance(n, Node) else n for n in wanted))
    backward.output_node().meta["desc"] = _descriptions(output)[forward_outputs:]
    for node in backward.nodes:
        if node.op in ("call_function", "get_attr"):
            node.meta["autograd_backward"] = True
    return graph_module(joint, backward, with_meta=False)


def used(wanted: Sequence[Any], saved: Sequence[Node], tangents: Sequence[Node]) -> tuple[list[Node], list[Node]]:
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


def _placeholder(graph: Graph, node: Node, name: str) -> Node:
    """A placeholder for a tensor like ``node`` that is not to be written to."""
    made = graph.placeholder(name)
    made.meta = {**node.meta, "donated": False}
    return made


def _call(graph: Graph, node: Node, target: Any, *operands: Node) -> Node:
    """A call of ``target`` that stands where ``node`` does in the user's code."""
    made = graph.call_function(target, operands)
    made.meta = {**node.meta, "val": target(*(n.meta["val"] for n in operands))}
    return made


def _body(graph: Graph, made: dict[Node, Node], roots: Sequence[Any], joint: Graph, *, lazily: bool) -> None:
    """Copy ``roots`` and all they still need from ``joint``, in its order.

    ``lazily`` takes one root after the other instead: what the backward computes again it then computes where it is
    first needed, and holds no longer than that.
    """
    order = {node: i for i, node in enumerate(joint.nodes)}
    missing = sorted({n for n in roots if isinstance(n, Node) and n not in made}, key=order.__getitem__)
    for group in [[root] for root in missing] if lazily else [missing]:
        copy_nodes(graph, sorted(needed_by(group, made), key=order.__getitem__), made)


def _clone(graph: Graph, old: Node, source: Node) -> Node:
    """A copy of an input or result, which the backward needs as the forward found or made it."""
    clone = graph.call_function(torch.ops.aten.clone.default, (source,))
    clone.meta = {**old.meta, "source": old.meta.get("source", ""), "val": _copied(old)}
    return clone


def _copied(node: Node) -> Any:
    """The value of a copy of ``node``, which has no gaps in memory where ``node`` has some."""
    value = node.meta["val"]
    return value.clone() if isinstance(value, torch.Tensor) else value
