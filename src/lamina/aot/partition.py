"""Which values of the forward the backward reads from memory and which it computes again.

The joint graph becomes a flow network whose minimum cut is the cheapest choice. A value that exists in the forward
has two vertices, in and out: "out" on the sink's side means that the backward has the value, "in" there as well that
it computes it again. Cutting in -> out pays for saving, source -> in for computing again; an operand's out is tied to
its user's in, because what is computed again needs its operands. (Checkmate and torch's min-cut partitioner leave
the price of computing again out or at zero; on a CPU an exponential costs more than the load it replaces.)
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.aot import reasons
from lamina.aot.backward_operands import are_backward_operands, elements_read, is_backward_operand
from lamina.aot.cost import CostModel, OpClass, bytes_of, classify
from lamina.aot.equal_values import compared_values
from lamina.aot.extract import Effects, Split, extract, used
from lamina.aot.min_cut import INFINITE, Network
from lamina.aot.packed import Packed, packed_bytes, packed_values
from lamina.aot.partial_reads import read_apart
from lamina.aot.reuse import Reuse, find_reuses
from lamina.aot.unread_operands import without_unread_operands
from lamina.base.decision import Decision
from lamina.base.files import graph_text, text_of
from lamina.base.fx.copying import needed_by
from lamina.base.reasons import Reason

__all__ = ["Partition", "partition"]

_SCALE = 4
"""Capacities are quarter bytes, so that a fraction of a byte of work counts."""


@dataclass(frozen=True, slots=True)
class Partition:
    """The forward and the backward graph, what passes between them (bytes by hint) and why."""

    forward: GraphModule
    backward: GraphModule
    saved: tuple[str, ...]
    saved_bytes: int
    recomputed: tuple[str, ...]
    decisions: tuple[Decision, ...]
    rereads: tuple[int, ...] = ()
    """Results of the forward that ``rereading``, a second backward, takes besides, after a digest of each."""
    rereading: GraphModule | None = None
    copied: tuple[str, ...] = ()
    """Inputs and results of which a copy is saved: a write to one after the forward leaves the gradients alone."""

    def __str__(self) -> str:
        return text_of(self)

    def files(self) -> dict[str, str]:
        """Each graph as Python."""
        graphs = {"_forward": self.forward, "_backward": self.backward, "_rereading_backward": self.rereading}
        return {f"{name}.py": graph_text(gm) for name, gm in graphs.items() if gm is not None}


def partition(
    joint: GraphModule,
    forward_outputs: int,
    static: Sequence[int],
    device: str,
    rereads: bool = False,
    written: Sequence[int] = (),
) -> Partition:
    """Split ``joint`` after its first ``forward_outputs`` outputs.

    ``static`` are the positions of parameters and buffers among the forward's inputs; ``device`` the type of device
    whose costs count. ``rereads``: a backward may read what was returned, while that is unchanged. ``written`` are the
    inputs that are written to when the forward is through, without a node in ``joint``. Raises ``OverflowError`` for a
    graph whose backward needs what cannot be had twice.
    """
    without_unread_operands(joint, forward_outputs)
    view = _Joint(joint, forward_outputs, static, written)
    model = CostModel.of(device)
    network, vertices = _network(view, model)
    _, sink_side = network.min_cut()
    saved, recomputed = list[Node](), list[Node]()
    for node, (inside, outside) in vertices.items():
        if sink_side[inside]:
            recomputed.append(node)
        elif sink_side[outside]:
            saved.append(node)
    reuses: tuple[Reuse, ...] = ()
    if rereads:
        results: list[Any] = list(joint.graph.output_node().args[0])  # type: ignore[arg-type]
        wanted = [n for n in results[forward_outputs:] if isinstance(n, Node)]
        again = view.refused.intersection(recomputed)
        roots = [*wanted, *view.effects.backward]
        reuses = find_reuses(results[:forward_outputs], again, saved, roots, view.forward_nodes, view.kinds)
    copied = view.effects.copied
    early = [n for n in view.nodes if n not in view.after]
    packed = packed_values(saved, view.forward_results, early, view.kinds) if model.packs else ()
    witnesses = view.results_in_memory_of(saved)
    split: Split = extract(joint, forward_outputs, saved, view.effects, reuses, packed, witnesses)
    rest = (*map(_reread, reuses), *map(_packed, split.packed))
    seen = (Decision("save", (node.name,), True, reasons.TELLS_OF_WRITES()) for node in witnesses)
    decisions = (*_decisions(view, saved, recomputed), *seen, *rest)
    elsewhere = {*witnesses, *(n for pack in split.packed for n in pack.nodes)}
    alone = [n for n in split.saved if n not in elsewhere]
    return Partition(
        split.forward,
        split.backward,
        tuple(n.name for n in split.saved),
        sum(bytes_of(n.meta["val"]) for n in alone if n in copied or n.name not in view.static_names)
        + sum(pack.nbytes for pack in split.packed),
        tuple(n.name for n in recomputed if view.needed_forward(n) and view.kinds[n].kind != "view"),
        decisions,
        tuple(reuse.output for reuse in reuses),
        split.rereading,
        tuple(n.name for n in split.saved if n in copied),
    )


class _Joint:
    """The joint graph with the sets the network is built from."""

    def __init__(
        self,
        joint: GraphModule,
        forward_outputs: int,
        static: Sequence[int],
        written: Sequence[int],
    ) -> None:
        self.nodes = [n for n in joint.graph.nodes if n.op != "output"]
        outputs = next(iter(joint.graph.find_nodes(op="output"))).args[0]
        self.forward_results = {n for n in outputs[:forward_outputs] if isinstance(n, Node)}
        self.gradients = [n for n in outputs[forward_outputs:] if isinstance(n, Node)]
        placeholders = [n for n in self.nodes if n.op == "placeholder"]
        self.tangents = [n for n in placeholders if "tangents" in str(n.target)]
        primals = [n for n in placeholders if n not in self.tangents]
        self.static_names = {primals[i].name for i in static if i < len(primals)}
        self.written_later = frozenset(primals[i] for i in written if i < len(primals))
        self.after = self._after_tangents()
        self.kinds: dict[Node, OpClass] = {n: classify(n) for n in self.nodes if n.op != "placeholder"}
        self.effects = self._effects()
        self.forward_nodes = needed_by([*self.forward_results, *self.effects.forward])
        users = self.after.union(self.effects.backward)
        demanded = [n for user in self.nodes if user in users for n in user.all_input_nodes]
        self.demanded = {n for n in (*demanded, *self.gradients) if n not in self.after}
        self.relevant = needed_by(self.demanded)
        self.operands: set[Node] = set(self.demanded)
        """What eager saves, as far as backward formulas ask for it, and what that is a view of."""
        self.visible: set[Node] = set()
        """Inputs, returned tensors and what these are views of: the user may write to them."""
        self.refused = self._refused(primals)
        mistold = self._operands_by_passes(joint, primals)
        self.refused |= mistold
        kept = mistold.union(self.refused.intersection(primals))
        self.effects = replace(self.effects, copied=self.effects.copied | kept)
        self.compared = compared_values(self.nodes, self.kinds) - self.refused
        written_later = self.visible - self.refused - self.effects.copied
        self.apart = read_apart(self.nodes, self.tangents, written_later, self.kinds, self.needed_forward)
        self.apart -= self.refused
        self._materialised()

    def needed_forward(self, node: Node) -> bool:
        """Whether the forward's results depend on ``node``."""
        return node in self.forward_nodes

    def results_in_memory_of(self, saved: Sequence[Node]) -> dict[Node, list[Node]]:
        """A result for each memory that has results and something saved, of which none is both, and what is saved.

        A write to such a result is one to what is saved, and only the result's version tells of it. What is ``saved``
        and not read counts for nothing.
        """
        tensors, _ = used([*self.gradients, *self.effects.backward], saved, self.tangents)
        results: dict[Node, Node] = {}
        for node in self.nodes:
            if node in self.forward_results and isinstance(node.meta.get("val"), torch.Tensor):
                results.setdefault(self._memory(node), node)
        kept: dict[Node, list[Node]] = {}
        for node in tensors:
            if node not in self.effects.copied:
                kept.setdefault(self._memory(node), []).append(node)
        untold = (m for m in kept if not any(n in self.forward_results or n.op == "placeholder" for n in kept[m]))
        return {results[memory]: kept[memory] for memory in untold if memory in results}

    def _memory(self, node: Node) -> Node:
        """The operation, or input, whose memory a value lies in."""
        while _is_view(self, node):
            node = node.all_input_nodes[0]
        return node

    def _after_tangents(self) -> set[Node]:
        after: set[Node] = set()
        for node in self.nodes:
            tangent = node.op == "placeholder" and "tangents" in str(node.target)
            if tangent or any(n in after for n in node.all_input_nodes):
                after.add(node)
        return after

    def _refused(self, primals: Sequence[Node]) -> set[Node]:
        """Tensors that are not saved as they are because eager would not save them, and the user may write to them.

        Those are inputs and returned tensors that no backward formula asks for: with one of them saved only to compute
        something else again, a later write would be an error that eager does not raise, or, where no version counts it
        (``.data``, an optimizer's kernel), a wrong gradient. Leaves are written to as well, where gradients are off.
        """
        visible = self.visible
        visible.update({n for n in primals if n not in self.effects.copied} | self.forward_results)
        operands = self.operands
        operands.update(filter(is_backward_operand, primals))
        for node in reversed(self.nodes):
            views = node.op != "placeholder" and self.kinds[node].kind == "view"
            if views and (node in visible or node in self.forward_results):
                visible.update(node.all_input_nodes)
            if node not in self.forward_nodes or (views and node in operands):
                operands.update(elements_read(node))
        return visible - operands

    def _operands_by_passes(self, joint: GraphModule, primals: Sequence[Node]) -> set[Node]:
        """Inputs and returned tensors that a formula asks for only since a pass has put them in another's place.

        Eager saves the other, such as a clone, and lets the user write to these: a copy may be saved.
        """
        told = are_backward_operands(primals, joint.graph.output_node())
        return {n for n, read in told.items() if not read and n in self.operands and not _is_view(self, n)}

    def _effects(self) -> Effects:
        impure = [n for n in self.nodes if n.op == "call_function" and n.is_impure()]
        backward = [n for n in impure if n in self.after or _tagged_backward(n)]
        forward = [n for n in impure if n not in set(backward)]
        copies = tuple(n for n in forward if n.target is torch.ops.aten.copy_.default)
        mutated = self.written_later.union(n.args[0] for n in copies if isinstance(n.args[0], Node))
        return Effects(tuple(forward), tuple(backward), copies, mutated, mutated)

    def _materialised(self) -> None:
        """Find the values that reach memory whatever is saved.

        That is what a library call makes or reads, in the forward or in the backward, and what is read on both sides
        of a library call, since no kernel spans one.
        """
        depth: dict[Node, int] = {}
        for node in self.nodes:
            above = max((depth[n] for n in node.all_input_nodes), default=0)
            depth[node] = above + (node.op != "placeholder" and self.kinds[node].kind in ("library", "random"))
        self.written: set[Node] = set()
        self.read_by_library: set[Node] = set()
        for node in reversed(self.nodes):
            if node.op == "placeholder":
                self.written.add(node)
                continue
            kind = self.kinds[node].kind
            for user in node.users:
                if user.op == "output":
                    continue
                user_kind = self.kinds[user].kind
                library = user_kind == "library" or user_kind == "random"
                if user in self.forward_nodes and (
                    library or depth[user] > depth[node] or (user_kind == "view" and user in self.written)
                ):
                    self.written.add(node)
                # A view of the forward may be what the backward's library call reads.
                if (library and user not in self.forward_nodes) or (
                    user_kind == "view" and user in self.read_by_library
                ):
                    self.read_by_library.add(node)
            if kind in ("library", "reduction") or node in self.forward_results or _of_library(node, self.kinds):
                self.written.add(node)


def _tagged_backward(node: Node) -> bool:
    """Whether AOTAutograd says that ``node``, which needs no tangent, runs in the backward."""
    return node.meta.get("partitioner_tag") in ("is_backward", "must_be_in_backward")


def _of_library(node: Node, kinds: dict[Node, OpClass]) -> bool:
    """Whether ``node`` takes a result out of a library call or a reduction."""
    if node.target is not operator.getitem:
        return False
    producer = node.args[0]
    return isinstance(producer, Node) and producer in kinds and kinds[producer].kind in ("library", "reduction")


def _network(view: _Joint, model: CostModel) -> tuple[Network, dict[Node, tuple[int, int]]]:
    network = Network()
    vertices: dict[Node, tuple[int, int]] = {}
    for node in view.nodes:
        if node not in view.relevant:
            continue
        inside, outside = vertices[node] = network.vertex(), network.vertex()
        network.edge(inside, outside, _save_capacity(view, model, node))
        network.edge(0, inside, _recompute_capacity(view, model, node))
        for operand in node.all_input_nodes:
            network.edge(vertices[operand][1], inside, INFINITE)
        if node in view.demanded:
            network.edge(outside, 1, INFINITE)
    return network, vertices


def _save_capacity(view: _Joint, model: CostModel, node: Node) -> int:
    value = node.meta.get("val")
    if isinstance(value, (torch.SymFloat, torch.SymBool)) and node.op != "placeholder":
        return INFINITE
    if isinstance(value, (torch.SymInt, torch.SymFloat, int, float)):
        return 1
    if not isinstance(value, torch.Tensor):
        return INFINITE
    if node in view.refused and node not in view.effects.copied:
        return INFINITE
    size = packed_bytes(node) if model.packs else bytes_of(value)
    if node in view.effects.copied:
        return _capacity(model.save(size, written=False, kept=False)) + 1
    if node.op == "placeholder":
        return 1 if node.name in view.static_names else _capacity(model.save(size, written=True, kept=True)) + 1
    if _is_view(view, node) or (view.kinds[node].kind == "random" and not view.needed_forward(node)):
        return INFINITE
    written = node in view.written
    return _capacity(model.save(size, written=written, kept=node in view.forward_results)) + 2


def _recompute_capacity(view: _Joint, model: CostModel, node: Node) -> int:
    if node.op == "placeholder":
        return INFINITE
    if not view.needed_forward(node):
        return 0
    kind = view.kinds[node]
    if kind.kind in ("library", "random") or node in view.compared or node in view.apart:
        return INFINITE
    cost = model.recompute(node, kind)
    value = node.meta.get("val")
    if node in view.read_by_library and not _is_view(view, node):
        cost += 2 * bytes_of(value)  # no kernel can use it where it is computed: it is written and read
    return _capacity(cost)


def _capacity(cost: float) -> int:
    return int(cost * _SCALE)


def _is_view(view: _Joint, node: Node) -> bool:
    """Whether ``node`` only looks at its operand's memory; an item of a tuple is a view if its producer makes views."""
    if node.op == "placeholder":
        return False
    if node.target is operator.getitem:
        producer = node.args[0]
        return isinstance(producer, Node) and producer in view.kinds and view.kinds[producer].kind == "view"
    return view.kinds[node].kind == "view"


def _decisions(view: _Joint, saved: Sequence[Node], recomputed: Sequence[Node]) -> tuple[Decision, ...]:
    made = []
    for node in saved:
        size = bytes_of(node.meta.get("val"))
        made.append(Decision("save", (node.name,), True, _why_saved(view, node), (("bytes", size),)))
    for node in recomputed:
        if view.needed_forward(node) and not _is_view(view, node):
            size, work = bytes_of(node.meta.get("val")), view.kinds[node].work
            facts = (("bytes", size), ("work", work))
            made.append(Decision("recompute", (node.name,), True, reasons.COMPUTED_AGAIN(), facts))
    return tuple(made)


def _reread(reuse: Reuse) -> Decision:
    reason = reasons.READ_WHERE_RETURNED()
    return Decision("reread", (reuse.node.name,), True, reason, (("bytes", bytes_of(reuse.node.meta["val"])),))


def _packed(pack: Packed) -> Decision:
    reason = reasons.BITS_OF_BYTE() if len(pack.nodes) > 1 else reasons.SIGN_IN_BYTE()
    return Decision("pack", tuple(n.name for n in pack.nodes), True, reason, (("bytes", pack.nbytes),))


def _why_saved(view: _Joint, node: Node) -> Reason:
    if node.op == "placeholder":
        if node in view.effects.mutated:
            return reasons.MUTATED_INPUT()
        kept = node in view.effects.copied
        return reasons.UNSAVED_INPUT() if kept else reasons.INPUT_ALIVE()
    if node in view.effects.copied:
        return reasons.OUTPUT_COPIED()
    if node in view.forward_results:
        return reasons.OUTPUT_ALIVE()
    kind = view.kinds[node].kind
    if node.target is operator.getitem:
        producer = node.args[0]
        kind = view.kinds[producer].kind if isinstance(producer, Node) else kind
    if kind == "library":
        return reasons.LIBRARY_RESULT()
    if kind == "random":
        return reasons.RANDOM_DRAW()
    if kind == "reduction":
        return reasons.REDUCTION_RESULT()
    if node in view.compared:
        return reasons.COMPARED_VALUE()
    if node in view.apart:
        return reasons.READ_APART()
    if node in view.written:
        return reasons.WRITTEN_ANYWAY()
    return reasons.COSTS_MORE()
