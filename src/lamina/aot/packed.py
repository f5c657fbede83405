"""Saved values in fewer bytes than their type has: truth values as the bits of one, and signs in one.

Losses save where their branches lie, three masks an element where a byte holds eight; the gradient of an absolute value
asks for a sign in four bytes. The forward's last kernel packs them, the backward's first one takes them apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from lamina.aot.cost import OpClass, bytes_of
from lamina.base.symbolic.torch_private import has_symbols

__all__ = ["Packed", "packed_bytes", "packed_values"]

aten = torch.ops.aten

_BITS = 8
"""Truth values in one byte of a packed mask; the unpacking kernels shift by the same count."""
_SIGNS = (aten.sgn.default, aten.sign.default)
_BROAD = ("library", "random", "reduction")
"""Kinds of operations that kernels may end at."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Values of the joint graph that pass from the forward to the backward as one tensor of bytes."""

    nodes: tuple[Node, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the one tensor."""
        return packed_bytes(self.nodes[0])

    def among(self, tensors: Sequence[Node]) -> Packed | None:
        """The part of it that is among ``tensors``; ``None`` where nothing is left to pack."""
        left = tuple(n for n in self.nodes if n in tensors)
        return Packed(left) if len(left) > 1 or (left and _is_sign(left[0])) else None

    def value(self) -> Any:
        """An example of the one tensor, where the values are such."""
        first = self.nodes[0]
        return first.meta["val"].to(torch.int8 if _is_sign(first) else torch.uint8)

    def write(self, graph: Graph, made: Mapping[Node, Node]) -> Node:
        """The bytes, made at the end of the forward of what became of the values there."""
        first = self.nodes[0]
        if _is_sign(first):
            return _call(graph, first, aten._to_copy.default, made[first], dtype=torch.int8)
        total: Node | None = None
        for place, node in enumerate(self.nodes):
            bit = _call(graph, node, aten._to_copy.default, made[node], dtype=torch.uint8)
            if place:
                bit = _call(graph, node, aten.mul.Tensor, bit, 1 << place)
            total = bit if total is None else _call(graph, node, aten.bitwise_or.Tensor, total, bit)
        assert total is not None
        return total

    def read(self, graph: Graph, given: Node) -> dict[Node, Node]:
        """The values again, from the backward's input ``given``."""
        first = self.nodes[0]
        if _is_sign(first):
            return {first: _call(graph, first, aten._to_copy.default, given, dtype=first.meta["val"].dtype)}
        found: dict[Node, Node] = {}
        for place, node in enumerate(self.nodes):
            bit = _call(graph, node, aten.bitwise_and.Scalar, given, 1 << place)
            found[node] = _call(graph, node, aten.ne.Scalar, bit, 0)
        return found


def packed_bytes(node: Node) -> int:
    """Bytes in which ``node`` is saved where it is not packed with others."""
    size = bytes_of(node.meta.get("val"))
    return size // node.meta["val"].element_size() if _is_sign(node) else size


def packed_values(
    saved: Sequence[Node], results: Iterable[Node], early: Iterable[Node], kinds: Mapping[Node, OpClass]
) -> tuple[Packed, ...]:
    """What of ``saved`` is to be packed: signs, and truth values of like layout that one kernel makes.

    ``results`` are the caller's as they are, ``early`` all that hangs on no gradient, in order. Truth values are packed
    that elementwise operations connect and that no library call, draw or reduction lies between.
    """
    apart = set(results)
    alone = [n for n in saved if n not in apart and n.op == "call_function"]
    signs = [Packed((n,)) for n in alone if _is_sign(n)]
    masks = [n for n in alone if _is_mask(n) and kinds[n].kind == "pointwise"]
    if len(masks) < 2:
        return tuple(signs)
    groups: dict[Any, list[Node]] = {}
    kernel = _kernels(early, kinds)
    for node in masks:
        if any(user in kernel and kernel[user] != kernel[node] for user in node.users):
            continue  # read by a kernel that would have to make it again, or to read it
        value = node.meta["val"]
        groups.setdefault((kernel[node], value.shape, value.stride(), value.device), []).append(node)
    several = [g[at : at + _BITS] for g in groups.values() for at in range(0, len(g), _BITS)]
    return (*signs, *(Packed(tuple(group)) for group in several if len(group) > 1))


def _kernels(nodes: Iterable[Node], kinds: Mapping[Node, OpClass]) -> dict[Node, tuple[Node, int]]:
    """For elementwise calls among ``nodes``, two facts that are equal where one kernel is likely to do them."""
    ordered = [n for n in nodes if n in kinds]
    chief = {n: n for n in ordered}

    def of(node: Node) -> Node:
        while chief[node] is not node:
            node = chief[node]
        return node

    depth: dict[Node, int] = {}
    for node in ordered:
        operands = [n for n in node.all_input_nodes if n in chief]
        depth[node] = max((depth[n] for n in operands), default=0) + (kinds[node].kind in _BROAD)
        for operand in operands:
            if kinds[node].kind not in _BROAD and kinds[operand].kind not in _BROAD:
                chief[of(operand)] = of(node)
    return {node: (of(node), depth[node]) for node in ordered}


def _is_sign(node: Node) -> bool:
    value = node.meta.get("val")
    return node.target in _SIGNS and isinstance(value, Tensor) and value.is_floating_point()


def _is_mask(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dtype == torch.bool and value.dim() > 0 and not has_symbols(value)


def _call(graph: Graph, node: Node, target: Any, *operands: Any, **named: Any) -> Node:
    """A call that stands where ``node`` does in the user's code."""
    made = graph.call_function(target, operands, named)
    values = (n.meta["val"] if isinstance(n, Node) else n for n in operands)
    made.meta = {**node.meta, "val": target(*values, **named)}
    return made
