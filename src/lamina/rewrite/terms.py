"""Terms: what a node computes, in one form for all its spellings.

``x / 2``, ``x * 0.5`` and ``torch.div(x, 2)`` are one product, ``x @ y``, ``torch.bmm`` and ``torch.mm`` one matrix
product, ``x.mT`` and ``x.transpose(2, 3)`` one transposition of the last two dimensions: dimensions count from the last
one, so that a term means the same at any rank. Terms only serve comparison; graphs keep their own operations.
``canonical`` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from lamina.ops import overloads

__all__ = ["ADD", "COMMUTATIVE", "MUL", "Form", "Number", "Term", "form_of", "is_tensor"]

ADD, MUL = "add", "mul"
"""The operations whose operands may be in any order and nested in any way."""

COMMUTATIVE = overloads(lambda row: row.commutes)
"""Operations of two operands in any order."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number among the operands of a sum or product; ``inverse`` says that it divides or is subtracted."""

    value: Any
    inverse: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    """An operation and its arguments: nodes, terms within the term, and constants; for sums and products, operands.

    ``through`` are nodes, besides the one the term was made for, that it covers.
    """

    op: Hashable
    args: tuple[Any, ...]
    through: tuple[Node, ...] = ()


Form = Callable[[Node], Term | None]
"""The canonical form of an operation's calls: the term of one, or None where it stays as it is."""


def form_of(table: dict[Any, Form], *targets: Any) -> Callable[[Form], Form]:
    """Enter a function into ``table`` as the canonical form of ``targets``."""

    def enter(form: Form) -> Form:
        for target in targets:
            table[target] = form
        return form

    return enter


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a node that computes one tensor."""
    return isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor)
