"""Backward graphs for undefined gradients: autograd passes none for an output that no loss depends on.

Eager does not run the derivatives of such an output. Computing them with zeros instead gives NaN where a derivative is
infinite, gradients of zeros where eager has none, and asks for saved values that an earlier backward has freed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.aot.tangents import copied
from lamina.base.symbolic.torch_private import is_true

__all__ = ["needs_saved", "read_or_telling", "without_saved", "without_undefined", "without_unread"]

_SUMS = (torch.ops.aten.add.Tensor, torch.ops.prims.add.default)


def without_undefined(
    backward: GraphModule, tangents: Collection[str], undefined: Collection[str]
) -> GraphModule | None:
    """A copy of ``backward`` without those of its ``tangents``, names of placeholders, that are ``undefined``.

    What depends on gradients only through absent ones is none, as eager does not run it; of a sum the other term is
    left, and any other operation gets zeros. None if the graph has effects besides its results, or if zeros have
    symbolic sizes which no gradient that is there has, nor a saved number.
    """
    if any(
        n.op not in ("placeholder", "call_function", "output", "get_attr") or n.is_impure() for n in _inner(backward)
    ):
        return None
    copy = copied(backward)
    graph = copy.graph
    flowing: set[Node] = set()
    none: set[Node] = set()
    sized: list[Node] = []
    for node in list(graph.nodes):
        if node.op == "placeholder":
            if node.name in tangents:
                flowing.add(node)
            if node.name in undefined:
                none.add(node)
            elif node.name in tangents or isinstance(node.meta.get("val"), torch.SymInt):
                sized.append(node)
        elif node.op == "output":
            node.args = (torch.fx.map_arg(node.args[0], lambda n: None if n in none else n),)
        elif not _visit(node, flowing, none, sized):
            return None
    graph.eliminate_dead_code()
    for node in graph.find_nodes(op="placeholder"):
        if node in none:
            graph.erase_node(node)
    graph.lint()
    copy.recompile()
    return copy


def needs_saved(backward: GraphModule, tangents: Collection[str]) -> bool:
    """Whether the graph reads any input besides its ``tangents``."""
    return any(n.users for n in backward.graph.find_nodes(op="placeholder") if n.name not in tangents)


def without_saved(backward: GraphModule, tangents: Collection[str]) -> GraphModule:
    """A copy of ``backward`` that takes its ``tangents``, and what else is named, only; it reads no other input."""
    copy = copied(backward)
    for node in copy.graph.find_nodes(op="placeholder"):
        if node.name not in tangents:
            copy.graph.erase_node(node)
    copy.recompile()
    return copy


def without_unread(backward: GraphModule, saved: Collection[str]) -> GraphModule:
    """``backward`` as a graph that takes no ``saved`` tensor which it does not read."""
    read = read_or_telling(backward)
    return without_saved(backward, [n.name for n in _given(backward) if n.name in read or n.name not in saved])


def read_or_telling(backward: GraphModule) -> set[str]:
    """Names of the inputs that the graph reads, and of those whose version tells of a write to one that it reads."""
    read = {n.name for n in _given(backward) if n.users}
    return read | {n.name for n in _given(backward) if not read.isdisjoint(n.meta.get("tells_of", ()))}


def _given(gm: GraphModule) -> list[Node]:
    return list(gm.graph.find_nodes(op="placeholder"))


def _inner(gm: GraphModule) -> list[Node]:
    return [n for n in gm.graph.nodes if n.op not in ("placeholder", "output")]


def _visit(node: Node, flowing: set[Node], none: set[Node], sized: Sequence[Node]) -> bool:
    """Enter ``node`` where it belongs, with what is left of it where only some of its gradients are there.

    False if it wants zeros that cannot be made: of sizes that none of the nodes ``sized`` is, or has.
    """
    operands = [n for n in node.all_input_nodes if n in flowing]
    if not operands:
        return True
    flowing.add(node)
    missing = [n for n in operands if n in none]
    term = _other_term(node, missing) if missing else None  # of a gradient that is zero it depends on none
    if term is None and len(missing) == len(operands):
        none.add(node)
    elif missing:
        if term is not None and _alike(node, term):
            node.replace_all_uses_with(term)
            return True
        for operand in missing:
            value = operand.meta.get("val")
            if not isinstance(value, torch.Tensor):
                return False
            if term is not None and _of_one_shape(node, term):
                # Minus zero leaves every term as it is, and one element of it goes with any sizes.
                sizes: list[Any] | None = [1] * value.dim()
            else:
                sizes = _sizes(node, value, sized)
            if sizes is None:
                return False
            node.replace_input_with(operand, _zeros(node, operand, sizes, 0 if term is None else -0.0))
    return True


def _other_term(node: Node, missing: Sequence[Node]) -> Node | None:
    """The term of a sum of two that is not missing; None for what is no such sum."""
    if node.target not in _SUMS or node.kwargs:
        return None
    terms = [n for n in node.args if n not in missing]
    return terms[0] if len(terms) == 1 and isinstance(terms[0], Node) else None


def _of_one_shape(node: Node, other: Node) -> bool:
    """Whether both are tensors of floating-point numbers with as many elements along each axis."""
    a, b = node.meta.get("val"), other.meta.get("val")
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)) or a.dim() != b.dim():
        return False
    return a.dtype.is_floating_point and all(is_true(m == n) for m, n in zip(a.shape, b.shape, strict=True))


def _sizes(before: Node, value: torch.Tensor, sized: Sequence[Node]) -> list[Any] | None:
    """The sizes of ``value`` as numbers and nodes before a node; None if one is not to be had."""
    shape: Sequence[Any] = value.shape
    found = [_size(before, n, sized) if isinstance(n, torch.SymInt) else n for n in shape]
    return None if any(n is None for n in found) else found


def _size(before: Node, wanted: Any, sized: Sequence[Node]) -> Node | None:
    for node in sized:
        value: Any = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            if is_true(value == wanted):
                return node
            continue
        for axis, length in enumerate(value.shape):
            if is_true(length == wanted):
                with before.graph.inserting_before(before):
                    made = before.graph.call_function(torch.ops.aten.sym_size.int, (node, axis))
                made.meta["val"] = length
                return made
    return None


def _alike(node: Node, other: Node) -> bool:
    """Whether two nodes hold tensors of one shape, type and layout."""
    a, b = node.meta.get("val"), other.meta.get("val")
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)) or a.dim() != b.dim():
        return False
    numbers = zip((*a.shape, *a.stride()), (*b.shape, *b.stride()), strict=True)
    return (a.dtype, a.device) == (b.dtype, b.device) and all(is_true(m == n) for m, n in numbers)


def _zeros(before: Node, like: Node, sizes: list[Any], zero: float) -> Node:
    """Zeros of some sizes, of the type of the value of ``like``, made before the node ``before``."""
    value = like.meta["val"]
    with before.graph.inserting_before(before):
        made = before.graph.call_function(
            torch.ops.aten.full.default,
            (sizes, zero),
            {"dtype": value.dtype, "layout": torch.strided, "device": value.device, "pin_memory": False},
        )
    made.meta.update({k: v for k, v in like.meta.items() if k != "val"})
    numbers = [n.meta["val"] if isinstance(n, Node) else n for n in sizes]
    with value.fake_mode:
        made.meta["val"] = torch.full(numbers, zero, dtype=value.dtype, device=value.device)
    return made
