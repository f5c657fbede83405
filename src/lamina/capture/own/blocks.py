"""Equal blocks of a graph, such as a model's layers: the graph is run part by part, and equal parts are compiled once.

A part is a graph of its own, so that everything from the joint trace to the kernels is made for the first of equal
ones, and found for the others. Cuts lie where few tensors are needed later and, if possible, after a library call:
kernels join nothing across one, so that no fusion is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from lamina.base.devices import kind_of
from lamina.base.source import operation_name
from lamina.base.torch_private import storage_of
from lamina.capture.own.fakes import look
from lamina.capture.own.frame import MOST_KEPT
from lamina.capture.own.nested import frozen
from lamina.capture.own.pending import Pending
from lamina.capture.own.regions import FEW
from lamina.capture.own.segment import Segment

__all__ = ["Parts", "part_of_graph", "parts_of"]

_FEWEST = FEW // 3
"""Equal blocks from which on a graph is cut: each part costs some microseconds a call and is compiled by itself."""
_SHORTEST = FEW // 2
"""Calls of a block at least."""
_LEAST = FEW**5
"""Elements at least that a block reads and computes: below, a call of its own takes as long as what it does."""
_MOST_ACROSS = FEW // 4
"""Tensors at most that are needed after a cut, beside those that all blocks read."""
_LAYERS = frozenset(("linear", "addmm", "conv1d", "conv2d", "conv3d"))
_LIBRARY = frozenset(("matmul", "mm", "bmm", "baddbmm", "scaled_dot_product_attention"))
"""Calls after which kernels are cut anyway: those of ``_LAYERS``, and others, whose results are often laid out anew."""


@dataclass
class Parts:
    """Where a graph is cut: the ``nodes`` of each part; ``crossing`` are those that later parts read.

    There are so many equal ``blocks`` of so many ``calls``. The program holds what those ``seen`` give.
    """

    nodes: list[list[Node]]
    crossing: set[Node]
    blocks: int
    calls: int
    seen: set[Node] = field(default_factory=set)

    def see_bases(self) -> None:
        """The program, which holds a view, is given what it is a view of by its ``_base``."""
        held = {storage_of(node.meta["example_value"]) for node in self.seen if _is_tensor(node)}
        self.seen |= {node for node in self.crossing if storage_of(node.meta["example_value"]) in held}


def part_of_graph(
    whole: Segment, nodes: Sequence[Node], tensors: Mapping[Node, Pending], seen: Set[Node], ahead: bool = False
) -> tuple[Segment, list[Node], list[Node]]:
    """Some ``nodes`` of a graph as a graph, with those of the ``whole`` that it gives and its own for these.

    ``tensors`` are those of all nodes that are asked for, by the program if they are ``seen``; the parts before this
    one have computed theirs, or, ``ahead`` of that, the part is as it will be if these look as without values.
    """
    entries = dict(zip(_calls_in(whole), whole.key, strict=True))
    given: dict[Node, torch.Tensor] = {whole.input_nodes[id(tensor)]: tensor for tensor in whole.inputs}
    given.update(tensors)
    part = Segment(whole.stand_ins, whole.held)
    part.state, part.draws, part.is_part = whole.state, whole.draws, whole.is_part
    part.stand_ins.copied = True  # what calls give is computed anew from what stands for this part's inputs
    made: dict[Node, Node] = {}
    for node in nodes:
        for read in node.all_input_nodes:
            if read not in made:
                tensor = _expected(part, read.meta["example_value"]) if ahead and read in tensors else given[read]
                part.fake_of(tensor)
                made[read] = part.input_nodes[id(tensor)]
        args, kwargs = map_arg((node.args, node.kwargs), made.__getitem__)
        copied = part.graph.create_node(node.op, node.target, args, kwargs, node.name)
        copied.meta = dict(node.meta)
        made[node] = copied
        part.numbers[copied] = len(part.numbers)
        given_as = (frozen(copied.args, part.numbers), frozen(copied.kwargs, part.numbers))
        item = entries[node][0] == "item"
        part.key.append(("item", *given_as[0][1:]) if item else (node.op, node.target, *given_as))
    wanted = [node for node in nodes if node in tensors]
    part.unseen = frozenset(place for place, node in enumerate(wanted) if node not in seen)
    part.key.append(("unseen", *sorted(part.unseen)))
    return part, wanted, [made[node] for node in wanted]


def _expected(part: Segment, fake: Any) -> Any:
    """``fake`` as an input of a part: it stands for a tensor that is not computed yet."""
    part.expected[id(fake)] = (torch.Tensor, *look(fake)[1:])
    return fake


def parts_of(segment: Segment, known: dict[Any, bool]) -> Parts | None:
    """Where a graph is to be cut; None if it has no blocks that are worth it.

    That is ``known`` of graphs of the same calls: for other sizes they share what is compiled for these.
    """
    plain = not (segment.writes or segment.switches or segment.watched or segment.learnt or segment.marks)
    if not plain or any(kind_of(tensor).queued for tensor in segment.inputs):
        return None
    nodes = _calls_in(segment)
    if len(nodes) < _FEWEST * _SHORTEST:
        return None
    calls = tuple(node.target for node in nodes)
    found = _blocks(_kinds(nodes)) if known.get(calls, True) else None
    if found is None:
        return None
    if len(known) >= MOST_KEPT:
        known.clear()
    made = _cut(segment, nodes, *found, worth=known.get(calls, False))
    known[calls] = made is not None
    return made


def _calls_in(segment: Segment) -> list[Node]:
    """The calls of a graph, each of which has an entry in its key."""
    return [node for node in segment.graph.nodes if node.op != "placeholder"]


def _kinds(nodes: Sequence[Node]) -> list[int]:
    """A number for each call, the same for calls that differ in what they read at most."""
    alike: dict[Node, int] = _Alike()
    numbers: dict[Any, int] = {}
    found = []
    for node in nodes:
        made = node.meta.get("example_value")
        look = (tuple(made.shape), made.dtype, made.requires_grad) if isinstance(made, torch.Tensor) else None
        kind = (node.target, frozen(node.args, alike), frozen(node.kwargs, alike), look)
        found.append(numbers.setdefault(kind, len(numbers)))
    return found


class _Alike(dict[Any, int]):
    """Gives all nodes one number."""

    def __missing__(self, node: Any) -> int:
        return 0


def _blocks(kinds: Sequence[int]) -> tuple[int, int, int] | None:
    """The first call of equal blocks, the calls of a block, and the end of what repeats; None if nothing does."""
    last: dict[int, int] = {}
    gaps: Counter[int] = Counter()
    for at, kind in enumerate(kinds):
        if kind in last:
            gaps[at - last[kind]] += 1
        last[kind] = at
    best: tuple[int, int, int] | None = None
    for period, count in gaps.items():
        if period < _SHORTEST or count < _FEWEST - 1:
            continue
        first, end = _longest(kinds, period)
        if end - first >= period * _FEWEST and (best is None or end - first > best[2] - best[0] + period):
            best = first, period, end
    return best


def _longest(kinds: Sequence[int], period: int) -> tuple[int, int]:
    """The longest stretch in which each call is of the kind of that one ``period`` before it."""
    best = 0, 0
    first = 0
    for at in range(len(kinds) - period):
        if kinds[at] != kinds[at + period]:
            first = at + 1
        elif at + 1 - first > best[1] - best[0]:
            best = first, at + 1
    return (best[0], best[1] + period) if best[1] else (0, 0)


def _cut(segment: Segment, nodes: list[Node], first: int, period: int, end: int, worth: bool) -> Parts | None:
    """Cuts at the same place of each block, one after which little is needed; ``worth``: a block does enough."""
    at = {node: number for number, node in enumerate(nodes)}
    last = [max((at[user] for user in node.users), default=-1) for node in nodes]
    inputs = {storage_of(fake) for fake in segment.fakes if fake.layout is torch.strided}
    best: tuple[tuple[int, int, int], list[int]] | None = None
    for offset in range(period):
        cuts = [*range(first + offset, end + 1, period)]
        if len(cuts) <= _FEWEST:
            continue
        middle = cuts[len(cuts) // 2]
        across = [node for node in nodes[cuts[0] : middle] if last[at[node]] >= middle]
        before = operation_name(nodes[middle - 1].target)
        score = (
            0 if before in _LAYERS else 1 if before in _LIBRARY else 2,
            sum(node.meta["example_value"].numel() if _is_tensor(node) else 0 for node in across),
            offset,
        )
        if len(across) <= _MOST_ACROSS and (best is None or score < best[0]):
            bounds = [*dict.fromkeys((0, *cuts, len(nodes)))]
            if _is_possible(segment, nodes, bounds, last, inputs):
                best = score, bounds
    if best is None or not (worth or _is_worth_it(nodes[best[1][1] : best[1][2]])):
        return None
    bounds = best[1]
    crossing = {node for one, other in pairwise(bounds) for node in nodes[one:other] if last[at[node]] >= other}
    return Parts([nodes[one:other] for one, other in pairwise(bounds)], crossing, (end - first) // period, period)


def _is_possible(segment: Segment, nodes: list[Node], bounds: list[int], last: list[int], inputs: set[int]) -> bool:
    """Whether what is needed after the cuts are tensors of the graph's own, each with memory of its own."""
    memories = set(inputs)
    for one, other in pairwise(bounds):
        for number in range(one, other):
            if last[number] < other:
                continue
            node = nodes[number]
            if not _is_tensor(node) or segment.nodes.get(id(node.meta["example_value"])) is not node:
                return False
            memory = storage_of(node.meta["example_value"])
            if memory in memories:
                return False
            memories.add(memory)
    return True


def _is_tensor(node: Node) -> bool:
    made = node.meta.get("example_value")
    return isinstance(made, torch.Tensor) and made.layout is torch.strided


def _is_worth_it(block: Iterable[Node]) -> bool:
    """Whether a block does more than calling it takes."""
    held = [*block]
    read = {one for node in held for one in node.all_input_nodes}
    elements: int = sum(one.meta["example_value"].numel() for one in read.union(held) if _is_tensor(one))
    return elements >= _LEAST
