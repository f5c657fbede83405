"""Captured calls that return their operand itself, and results that are one tensor: eager's are one object."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.aot.engine.results import with_places
from lamina.base.captured import example, may_be_alike, memory
from lamina.base.fx.copying import returning
from lamina.base.fx.torch_private import graph_module
from lamina.base.operands import with_operands
from lamina.base.source import operation_name
from lamina.base.symbolic.torch_private import is_fake, is_sure
from lamina.ops.calls import names

__all__ = ["Distinct", "distinct", "without_identities"]

_RETURN_OPERAND = names(lambda function: function.returns_operand)
"""Calls that return the operand itself where there is nothing to do, and so do in tracing."""

_DROPOUTS = frozenset(("alpha_dropout", "dropout", "feature_alpha_dropout", "feature_dropout"))
"""Calls that return the operand itself where there is nothing to drop; traced they return a copy."""


def without_identities(gm: GraphModule) -> GraphModule:
    """``gm``, or a copy in which an operand stands for each call that returns the operand itself.

    A copy would be another object, in other memory: a later write to one of the two would be missing in the other.
    """
    same = {node: node.args[0] for node in gm.graph.nodes if _is_identity(node)}
    return graph_module(gm, with_operands(gm, same), with_meta=False) if same else gm


def _is_identity(node: Node) -> bool:
    if node.op not in ("call_function", "call_method") or "out" in node.kwargs:
        return False
    name = operation_name(node.target)
    if name not in _RETURN_OPERAND or not node.args or not isinstance(node.args[0], Node):
        return False
    if name in _DROPOUTS:
        return _drops_nothing(node)
    value = example(node)
    return is_fake(value) and example(node.args[0]) is value


def _drops_nothing(node: Node) -> bool:
    given = dict(zip(("input", "p", "training", "inplace"), node.args, strict=False)) | dict(node.kwargs)
    p, training = given.get("p", 0.5), given.get("training", given.get("train", True))
    if given.get("inplace") or not isinstance(p, (int, float)) or not isinstance(training, bool):
        return False
    return p == 0 or not training


@dataclass(frozen=True, slots=True)
class Distinct:
    """A graph that returns each tensor once, and none of its inputs, and where the results of the original are.

    ``places`` has the number of a result, or -1-i for input i. ``twins`` are results that lie in the memory of an
    earlier one, perhaps at the same place, which are objects of their own in eager. ``detached`` are results that
    others become without their history; they are no results of the graph and count after its own.
    """

    gm: GraphModule
    places: tuple[int, ...]
    twins: tuple[tuple[int, int], ...]
    detached: tuple[int, ...]

    def applied(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """``compiled`` with the results of the original graph."""
        return with_places(compiled, self.places, self.twins, self.detached)


def distinct(gm: GraphModule) -> Distinct | None:
    """The graph without results that are others or inputs once more; None where all are tensors of their own.

    Nodes with one fake tensor are one object: a call that writes to an operand returns it. The last of them is
    returned, for such a call may have become one that makes a new value.
    """
    returned: Any = gm.graph.output_node().args[0]
    if not isinstance(returned, (tuple, list)) or not all(isinstance(one, Node) for one in returned):
        return None
    among = set(returned)
    last = {_object(one): one for one in gm.graph.nodes if one in among}
    inputs = {_object(n): i for i, n in enumerate(gm.graph.find_nodes(op="placeholder")) if is_fake(example(n))}
    given = [_object(one) for one in returned]
    objects = list(dict.fromkeys(one for one in given if one not in inputs))
    without = _detached([last[one] for one in objects])
    results = [last[one] for place, one in enumerate(objects) if place not in without]
    detached = tuple(results.index(last[objects[place]]) for place in without.values())
    twins = _twins(results)
    if len(results) == len(returned) and not twins:
        return None
    objects = [one for place, one in enumerate(objects) if place not in without] + [objects[place] for place in without]
    places = tuple(-1 - inputs[one] if one in inputs else objects.index(one) for one in given)
    return Distinct(graph_module(gm, returning(gm, results), with_meta=False), places, twins, detached)


def _object(node: Node) -> Any:
    """What tells the tensor of ``node`` from others; the node itself if nothing does."""
    value = example(node)
    return id(value) if is_fake(value) else node


def _detached(results: Sequence[Node]) -> dict[int, int]:
    """Places of results that are others without a history, and of those others.

    AOTAutograd makes the one of the other at each call, by all the views that lead to either.
    """
    found: dict[int, int] = {}
    for (i, one), (j, other) in itertools.permutations(enumerate(map(example, results)), 2):
        if j in found or memory(one) is None or memory(one) != memory(other):
            continue
        if one.requires_grad and not other.requires_grad and _are_alike(one, other):
            found[j] = i
    return found


def _are_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one memory have the same elements; run-time sizes are then guarded to be alike or not."""
    if not may_be_alike(one, other) or one.is_conj() != other.is_conj() or one.is_neg() != other.is_neg():
        return False
    places = ((*x.shape, *x.stride(), x.storage_offset()) for x in (one, other))
    return all(is_sure(a == b) for a, b in zip(*places, strict=True))


def _twins(results: Sequence[Node]) -> tuple[tuple[int, int], ...]:
    """Pairs of results in one memory that may be the same elements: a tensor and, say, what ``detach`` makes of it."""
    found = []
    for (i, one), (j, other) in itertools.combinations(enumerate(map(example, results)), 2):
        if memory(one) is not None and memory(one) == memory(other) and may_be_alike(one, other):
            found.append((i, j))
    return tuple(found)
