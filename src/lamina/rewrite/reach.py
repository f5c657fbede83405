"""What lies right below a value: cheap reasons why a pattern cannot be found at a node.

A pattern is only compared with a node of which operands and operands of those have the operations that they have in the
pattern. Nothing that could match is turned away: operands are all that the matcher may see as such.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from torch.fx import Node

from lamina.rewrite.canonical import term_of
from lamina.rewrite.pattern import Pattern
from lamina.rewrite.terms import ADD, MUL, Term
from lamina.rewrite.transparent import resolve

__all__ = ["Terms"]

_NESTED = (ADD, MUL)
_MOST_OPERANDS = 64
"""Of a sum or product with more operands than these nothing is said."""

Below = tuple[tuple[Hashable, Node | Term], ...]
"""Operands that are calls, each with its operation."""


class Terms:
    """The terms of a graph's nodes, remembered until the graph changes."""

    def __init__(self) -> None:
        self._terms: dict[Node, Term] = {}
        self._below: dict[Node, Below | None] = {}
        self._operations: dict[Node, frozenset[Hashable] | None] = {}
        self._pairs: dict[Node, frozenset[tuple[Hashable, Hashable | None]] | None] = {}

    def forget(self) -> None:
        """The graph has changed."""
        for known in (self._terms, self._below, self._operations, self._pairs):
            known.clear()

    def of(self, node: Node) -> Term:
        """The term of a call."""
        found = self._terms.get(node)
        if found is None:
            found = self._terms[node] = term_of(node)
        return found

    def may_be(self, pattern: Pattern, node: Node) -> bool:
        """Whether the operands of ``node``, and theirs, have the operations that the pattern's first result needs."""
        if not pattern.pairs:
            return True
        if node not in self._pairs:
            self._pairs[node] = self._pairs_of(self._calls(node))
        found = self._pairs[node]
        return found is None or pattern.pairs <= found

    def _pairs_of(self, below: Below | None) -> frozenset[tuple[Hashable, Hashable | None]] | None:
        if below is None:
            return None
        found: set[tuple[Hashable, Hashable | None]] = set()
        for op, value in below:
            inner = self._operations_below(value)
            if inner is None:
                return None
            found.add((op, None))
            found.update((op, one) for one in inner)
        return frozenset(found)

    def _operations_below(self, value: Node | Term) -> frozenset[Hashable] | None:
        if isinstance(value, Term):
            return _operations(self._gathered(value))
        if value not in self._operations:
            self._operations[value] = _operations(self._calls(value))
        return self._operations[value]

    def _calls(self, node: Node) -> Below | None:
        if node not in self._below:
            self._below[node] = self._gathered(self.of(node))
        return self._below[node]

    def _gathered(self, term: Term) -> Below | None:
        """The operands of ``term`` that are calls; of sums and products those of nested ones too. None: too many."""
        nested = term.op in _NESTED
        found: list[tuple[Hashable, Node | Term]] = []
        left = list(_flat(term.args))
        while left:
            if len(found) + len(left) > _MOST_OPERANDS:
                return None
            value = left.pop()
            if isinstance(value, Term):
                found.append((value.op, value))
                if nested and value.op == term.op:
                    left.extend(_flat(value.args))
                continue
            node, passed = resolve(value)
            if node.op != "call_function":
                continue
            inner = self.of(node)
            found.append((inner.op, node))
            if nested and inner.op == term.op and all(len(n.users) == 1 for n in (node, *passed)):
                left.extend(_flat(inner.args))
        return tuple(found)


def _operations(below: Below | None) -> frozenset[Hashable] | None:
    return None if below is None else frozenset(op for op, _ in below)


def _flat(args: Sequence[Any]) -> Iterator[Node | Term]:
    for value in args:
        if isinstance(value, tuple):
            yield from _flat(value)
        elif isinstance(value, (Node, Term)):
            yield value
