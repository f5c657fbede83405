"""Returned tensors that the backward reads while they hold what the forward wrote, and computes again otherwise.

A returned sum is often what the backward wants: in one tensor what else it reads from two. Yet it is the caller's, who
may let it go or write to it where eager kept a copy of its own. So it is neither saved nor trusted. The forward notes
a digest of each row (``base/row_digest.py``), the function around it a weak reference. Of a tensor that is still there,
and that no operation of torch's has written to, a second backward takes the rows whose digest is as noted: a kernel of
the user's own, ``.data`` and the like leave no other trace. It computes all other rows again from what is saved, as
the usual backward does, which runs if the tensor is gone. Each of the two is compiled when it is first wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from lamina.aot.cost import OpClass, bytes_of
from lamina.base.row_digest import suits_digest
from lamina.base.symbolic.torch_private import contiguous

__all__ = ["Reuse", "find_reuses"]

_LEAST_BYTES = 8 << 20
"""Bytes to be read less for which a weak reference and a digest are worth it: 2 to 3 us of a GPU."""
_COLUMNS = (256, 32768)
"""Shortest and longest row of which a program takes the digest while it holds the row in registers."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """The joint graph's ``node``, result number ``output``, which the backward may read while it is unchanged."""

    node: Node
    output: int


def find_reuses(
    results: Sequence[Any],
    candidates: set[Node],
    saved: Sequence[Node],
    roots: Sequence[Node],
    forward: set[Node],
    kinds: Mapping[Node, OpClass],
) -> tuple[Reuse, ...]:
    """Those of ``candidates``, computed again by the backward, that are worth reading where they were returned.

    ``results`` are those of the nodes ``forward``, ``roots`` what the backward computes from ``saved``. Only sums and
    the like whose rows are reduced on both sides qualify: programs that hold a row anyway make its digest on the way.
    """
    found: list[Reuse] = []
    stops = set(saved)
    reached = _reached(roots, stops)
    for position, node in enumerate(results):
        if not isinstance(node, Node) or node not in candidates or node in stops or not _suits(node):
            continue
        rest = _reached(roots, stops | {node})
        spared = [n for n in saved if n in reached and n not in rest]
        gain = sum(bytes_of(n.meta["val"]) for n in spared) - bytes_of(node.meta["val"])
        sides = (forward, rest - stops)
        if gain >= _LEAST_BYTES and all(_rows_reduced(node, side, kinds) for side in sides):
            found.append(Reuse(node, position))
            stops.add(node)
            reached = rest
    return tuple(found)


def _reached(roots: Sequence[Node], stops: set[Node]) -> set[Node]:
    """What ``roots`` are computed from, up to ``stops`` and with those."""
    seen = set(roots)
    stack = list(seen)
    while stack:
        node = stack.pop()
        if node not in stops:
            fresh = [n for n in node.all_input_nodes if n not in seen]
            seen.update(fresh)
            stack += fresh
    return seen


def _suits(node: Node) -> bool:
    value = node.meta["val"]
    if not isinstance(value, Tensor) or not suits_digest(value) or not contiguous(value):
        return False
    least, most = _COLUMNS
    return all(type(n) is int for n in value.shape) and least <= value.shape[-1] <= most


def _rows_reduced(node: Node, side: set[Node], kinds: Mapping[Node, OpClass]) -> bool:
    """Whether rows of ``node``, or of something computed from its elements one by one, are reduced in ``side``."""
    shape = node.meta["val"].shape
    seen, stack = {node}, [node]
    while stack:
        for user in stack.pop().users:
            if user not in kinds or user in seen:
                continue
            seen.add(user)
            value = user.meta.get("val")
            if kinds[user].kind == "pointwise" and isinstance(value, torch.Tensor) and value.shape == shape:
                stack.append(user)
            elif kinds[user].kind == "reduction" and user in side and _keeps_rows(value, shape):
                return True
    return False


def _keeps_rows(value: Any, shape: torch.Size) -> bool:
    """Whether a reduction's results have one number, or all of them, for each row of ``shape``."""
    first = value[0] if isinstance(value, tuple) else value
    return isinstance(first, Tensor) and first.shape in (shape, shape[:-1], (*shape[:-1], 1))
