"""Arithmetic of complex numbers whose result is read as pairs, in real arithmetic that fuses with what is around it.

``view_as_real`` of sums, products and conjugates of complex numbers, with sizes that broadcast in any way: rotary
embeddings by ``view_as_complex`` and ``polar`` among them. Operations of complex numbers are library calls, a pass over
memory each, and so is every change between pairs and complex numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.source import source_of
from lamina.rewrite.reasons import PASS_CHANGED
from lamina.rewrite.rules.editing import Replacement, Writer, replaced
from lamina.rewrite.rules.spelling import Spelled, fake_of, spelled, written
from lamina.rewrite.torch_private import SET_GRAD, same_size

__all__ = ["turn_in_real_numbers"]

_ARITHMETIC = ("add", "sub", "mul")
_MADE_OF_REAL = ("view_as_complex", "polar", "complex")


@dataclass(slots=True)
class _Tree:
    """What a complex number is computed from: calls that nothing else reads, and complex tensors that are given."""

    dtype: torch.dtype
    calls: dict[Node, Spelled] = field(default_factory=dict)
    given: dict[Node, None] = field(default_factory=dict)

    def pays(self) -> bool:
        """Whether fewer tensors are made pairs, by a pass over memory each, than there are passes now."""
        return any(c.name in _ARITHMETIC for c in self.calls.values()) and len(self.given) <= len(self.calls)


def turn_in_real_numbers(gm: GraphModule, decisions: list[Decision]) -> GraphModule:
    """Complex arithmetic that is read as pairs; ``gm`` itself if there is none."""
    found: dict[Node, Replacement] = {}
    fixed = [node for node in gm.graph.nodes if written(node) or node.target is SET_GRAD]
    for node in gm.graph.nodes:
        call = spelled(node)
        root = call.args[0] if call is not None and call.name == "view_as_real" else None
        value = fake_of(root)
        if not isinstance(root, Node) or value is None:
            continue
        tree = _Tree(value.dtype)
        if not _grown(tree, root) or not tree.pays():
            continue
        if any(min(tree.calls) < n < node for n in fixed):  # what they read is read again, where the result is
            continue
        found[node] = functools.partial(_write, tree, root)
        subject = ("turn_in_real_numbers", source_of(node))
        reason = PASS_CHANGED(what="pairs are multiplied with the parts of complex numbers")
        decisions.append(Decision("rewrite", subject, True, reason))
    return replaced(gm, found)


def _grown(tree: _Tree, node: object) -> bool:
    """Whether ``node`` is a complex number that pairs stand for; ``tree`` then has what it is made of."""
    value = fake_of(node)
    if not isinstance(node, Node) or value is None or value.dtype != tree.dtype:
        return False  # a real operand is a complex one whose zero may meet an infinity
    if node in tree.calls:
        return True
    call = spelled(node) if len(node.users) == 1 else None
    if call is not None and not call.writes:
        if call.name in _ARITHMETIC and call.args[2:] in ((), (1,)):
            tree.calls[node] = call
            return _grown(tree, call.args[0]) and _grown(tree, call.args[1])
        if call.name == "conj":
            tree.calls[node] = call
            return _grown(tree, call.args[0])
        if call.name in _MADE_OF_REAL and _are_real(call.args, call.name == "view_as_complex"):
            tree.calls[node] = call
            return True
    tree.given[node] = None
    return not value.is_conj() and not value.is_neg()


def _are_real(operands: Sequence[object], pairs: bool) -> bool:
    """Whether these are tensors of real numbers, each of the first one's size.

    Gradients of parts have every second element of the complex gradient, which the strides of a result tell: only
    ``pairs`` may have one.
    """
    values = [fake_of(operand) for operand in operands]
    if any(v is None or not v.is_floating_point() or (v.requires_grad and not pairs) for v in values):
        return False
    sizes = [v.shape for v in values if v is not None]
    return all(len(n) == len(sizes[0]) and all(map(same_size, n, sizes[0])) for n in sizes)


def _write(tree: _Tree, root: Node, write: Writer) -> Node:
    return write.call(torch.stack, _parts(tree, root, write, {}), -1)


def _parts(tree: _Tree, node: Node, write: Writer, made: dict[Node, tuple[Node, Node]]) -> tuple[Node, Node]:
    """The real and the imaginary part, written once for each node."""
    if node not in made:
        call = tree.calls.get(node)
        if call is None:
            made[node] = _split(write, write.call(torch.view_as_real, write.old(node)))
        elif call.name in _MADE_OF_REAL:
            made[node] = _made_of_real(call, write)
        elif call.name == "conj":
            real, imaginary = _parts(tree, call.args[0], write, made)
            made[node] = real, write.call(torch.neg, imaginary)
        else:
            one, other = (_parts(tree, operand, write, made) for operand in call.args[:2])
            made[node] = _combined(call.name, one, other, write)
    return made[node]


def _split(write: Writer, pairs: Node) -> tuple[Node, Node]:
    return write.call(torch.select, pairs, -1, 0), write.call(torch.select, pairs, -1, 1)


def _made_of_real(call: Spelled, write: Writer) -> tuple[Node, Node]:
    operands = [write.old(operand) for operand in call.args]
    if call.name == "view_as_complex":
        return _split(write, operands[0])
    if call.name == "complex":
        return operands[0], operands[1]
    size, angle = operands
    cos, sin = (write.call(function, angle) for function in (torch.cos, torch.sin))
    return write.call(torch.mul, size, cos), write.call(torch.mul, size, sin)


def _combined(name: str, one: tuple[Node, Node], other: tuple[Node, Node], write: Writer) -> tuple[Node, Node]:
    (a, b), (c, d) = one, other
    if name != "mul":
        function = torch.add if name == "add" else torch.sub
        return write.call(function, a, c), write.call(function, b, d)
    real = write.call(torch.sub, write.call(torch.mul, a, c), write.call(torch.mul, b, d))
    return real, write.call(torch.add, write.call(torch.mul, a, d), write.call(torch.mul, b, c))
