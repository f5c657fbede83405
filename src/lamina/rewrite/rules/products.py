"""Batched matrix products of a captured graph, each operand and the result with a label for every dimension."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Node

from lamina.rewrite.rules.spelling import fake_of, number, spelled

__all__ = ["Labels", "Product", "product"]

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """``beta * addend + scale * sum over shared labels of left * right``, its dimensions in the order of ``out``."""

    left: Node
    left_labels: Labels
    right: Node
    right_labels: Labels
    out: Labels
    scale: float = 1.0
    addend: Node | None = None
    beta: float = 0.0


def product(node: object) -> Product | None:
    """How ``node`` multiplies two stacks of matrices; None when it does something else."""
    call = spelled(node) if isinstance(node, Node) else None
    if call is None:
        return None
    if call.name == "matmul":
        return _matmul(call.args[0], call.args[1])
    if call.name == "einsum" and len(call.args) == 3:
        return _einsum(*call.args)
    if call.name == "baddbmm":
        addend, left, right, beta, alpha = call.args
        plain = _matmul(left, right)
        beta, alpha = number(beta), number(alpha)
        if plain is None or beta is None or alpha is None or not isinstance(addend, Node):
            return None
        kept = addend if beta != 0 else None
        return Product(left, plain.left_labels, right, plain.right_labels, plain.out, alpha, kept, beta)
    return None


def _matmul(left: object, right: object) -> Product | None:
    a, b = fake_of(left), fake_of(right)
    if not isinstance(left, Node) or not isinstance(right, Node) or a is None or b is None:
        return None
    if a.dim() != b.dim() or a.dim() < 2:
        return None
    batch = tuple(f"b{i}" for i in range(a.dim() - 2))
    return Product(left, (*batch, "m", "n"), right, (*batch, "n", "p"), (*batch, "m", "p"))


def _einsum(equation: str, left: Node, right: Node) -> Product | None:
    operands, arrow, out = equation.partition("->")
    first, comma, second = operands.partition(",")
    if not arrow or not comma or "," in second:
        return None
    labels = [_expanded(text, node) for text, node in ((first, left), (second, right))]
    if "..." in out:
        widest = max((tuple(x for x in found if len(x) > 1) for found in labels if found), key=len, default=())
        before, _, after = out.partition("...")
        result: Labels = (*before, *widest, *after)
    else:
        result = tuple(out)
    a, b = labels
    if a is None or b is None or len(set(a)) < len(a) or len(set(b)) < len(b) or len(set(result)) < len(result):
        return None
    if not set(result) <= set(a) | set(b) or (set(a) ^ set(b)) - set(result):
        return None
    return Product(left, a, right, b, result)


def _expanded(text: str, node: Node) -> Labels | None:
    """One label for each dimension; those that an ellipsis stands for are numbered from the right."""
    value = fake_of(node)
    if value is None:
        return None
    before, ellipsis, after = text.partition("...")
    unnamed = value.dim() - len(before) - len(after)
    if unnamed < 0 or (unnamed > 0 and not ellipsis):
        return None
    return (*before, *(f"..{unnamed - i}" for i in range(unnamed)), *after)
