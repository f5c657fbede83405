"""Flattenings of nested sums and products: ways to see them as one sum or product of so many operands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from lamina.rewrite.reach import Terms
from lamina.rewrite.terms import Number, Term, is_tensor
from lamina.rewrite.transparent import resolve

__all__ = ["Flattening", "flattenings"]


@dataclass(frozen=True, slots=True)
class Flattening:
    """The numbers and the other operands of a sum or product, and the nodes used up by those it was nested of."""

    numbers: tuple[Number, ...]
    operands: tuple[Any, ...]
    used: tuple[Node, ...]


def flattenings(term: Term, dtype: torch.dtype | None, count: int, terms: Terms) -> Iterator[Flattening]:
    """Every way to see ``term`` as of ``count`` operands besides numbers, its own operands first.

    Only operands of its ``dtype`` are opened, or any if that is None.
    """
    start = Flattening(_numbers(term), _operands(term), ())
    yield from _opened_from(0, start, term, dtype, count, terms)


def _opened_from(
    start: int, seen: Flattening, term: Term, dtype: torch.dtype | None, count: int, terms: Terms
) -> Iterator[Flattening]:
    """``seen``, if it has ``count`` operands, and what comes of it when operands from ``start`` on are opened."""
    operands = seen.operands
    if len(operands) > count:
        return
    if len(operands) == count:
        yield seen
    for i in range(start, len(operands)):
        opened = _opened(operands[i], term, dtype, terms)
        if opened is None:
            continue
        inner, nodes = opened
        made = Flattening(
            (*seen.numbers, *_numbers(inner)),
            (*operands[:i], *_operands(inner), *operands[i + 1 :]),
            (*seen.used, *nodes, *inner.through),
        )
        yield from _opened_from(i, made, term, dtype, count, terms)


def _opened(operand: Any, outer: Term, dtype: torch.dtype | None, terms: Terms) -> tuple[Term, tuple[Node, ...]] | None:
    """The term and the nodes of an operand that is itself such a sum (or product) and is used nowhere else."""
    if isinstance(operand, Term):
        return (operand, ()) if operand.op == outer.op else None
    if not is_tensor(operand):
        return None
    node, passed = resolve(operand)
    if node.op != "call_function" or any(len(n.users) != 1 for n in (node, *passed)):
        return None
    term = terms.of(node)
    if term.op != outer.op or (dtype is not None and node.meta["val"].dtype != dtype):
        return None
    return term, (node, *passed)


def _numbers(term: Term) -> tuple[Number, ...]:
    return tuple(a for a in term.args if isinstance(a, Number))


def _operands(term: Term) -> tuple[Any, ...]:
    return tuple(a for a in term.args if not isinstance(a, Number))
