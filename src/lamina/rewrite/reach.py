"""What lies right below a value: cheap reasons why a pattern cannot be found at a node.

A pattern is only compared with a node that has, as operands and as operands of those, all the operations that the
pattern has there. Nothing that could match is turned away: operands are all that the matcher may see as such.
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
        self._near: dict[Node, frozenset[Hashable] | None] = {}
        self._far: dict[Node, frozenset[Hashable] | None] = {}

    def forget(self) -> None:
        """The graph has changed."""
        for known in (self._terms, self._below, self._near, self._far):
            known.clear()

    def of(self, node: Node) -> Term:
        """The term of a call."""
        found = self._terms.get(node)
        if found is None:
            found = self._terms[node] = term_of(node)
        return found

    def may_be(self, pattern: Pattern, node: Node) -> bool:
        """Whether the operands of ``node``, and theirs, have the operations that the pattern's first result needs."""
        if pattern.near:
            near = self._operations(node)
            if near is not None and not pattern.near <= near:
                return False
        if pattern.far:
            far = self._pairs(node)
            return far is None or pattern.far <= far
        return True

    def _operations(self, node: Node) -> frozenset[Hashable] | None:
        if node not in self._near:
            below = self._calls(node)
            self._near[node] = None if below is None else frozenset(op for op, _ in below)
        return self._near[node]

    def _pairs(self, node: Node) -> frozenset[Hashable] | None:
        if node not in self._far:
            self._far[node] = self._pairs_of(self._calls(node))
        return self._far[node]

    def _pairs_of(self, below: Below | None) -> frozenset[Hashable] | None:
        if below is None:
            return None
        found: set[Hashable] = set()
        for op, value in below:
            inner = self._operations(value) if isinstance(value, Node) else self._operations_of(value)
            if inner is None:
                return None
            found.update((op, one) for one in inner)
        return frozenset(found)

    def _operations_of(self, term: Term) -> frozenset[Hashable] | None:
        below = self._gathered(term)
        return None if below is None else frozenset(op for op, _ in below)

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


def _flat(args: Sequence[Any]) -> Iterator[Node | Term]:
    for value in args:
        if isinstance(value, tuple):
            yield from _flat(value)
        elif isinstance(value, (Node, Term)):
            yield value
