"""Finding a pattern in a graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.fx import Node

from lamina.base.rule import Match
from lamina.rewrite.match_constants import tolerance_of, with_constant
from lamina.rewrite.match_search import PartialMatch, Search
from lamina.rewrite.misses import Miss, Misses
from lamina.rewrite.pattern import Pattern
from lamina.rewrite.reach import Terms
from lamina.rewrite.same_value import SameValue
from lamina.rewrite.terms import is_tensor

__all__ = ["Matcher"]

_MOST_SOLUTIONS = 24
"""So many ways to see one place as the pattern are tried before the place is given up."""


class Matcher:
    """Matches patterns in one graph. ``training`` tells of a node whether gradients are recorded there.

    Of memory that is written to (``untouchable``) no two reads are taken for the same. ``miss`` is the nearest miss if
    ``explain`` is set.
    """

    def __init__(
        self,
        training: Callable[[Node], bool],
        untouchable: frozenset[Node] = frozenset(),
        explain: bool = False,
    ) -> None:
        self._training = training
        self._same = SameValue(training, untouchable)
        self._misses = Misses(explain)
        self._terms = Terms()

    @property
    def miss(self) -> Miss | None:
        """The nearest miss so far."""
        return self._misses.nearest

    def forget(self) -> None:
        """The graph has changed."""
        self._terms.forget()

    def matches(self, pattern: Pattern, root: Node) -> Iterator[Match]:
        """Each way to see ``pattern`` with ``root`` as its first result, the most literal one first."""
        if not (self._misses.wanted or self._terms.may_be(pattern, root)):
            return
        search = Search(pattern, self._terms, self._same, self._misses)
        for state in itertools.islice(search.solutions(root), _MOST_SOLUTIONS):
            match = self._finished(pattern, state, tolerance_of(pattern.rule, root))
            if match is not None:
                yield match

    def _finished(self, pattern: Pattern, state: PartialMatch, tolerance: float) -> Match | None:
        """The match, if constants made of sizes fit, and nothing inside is needed outside."""
        parameters = dict(pattern.rule.parameters)
        bound = _with_constants(state, parameters, tolerance)
        if bound is None:
            return None
        outputs = tuple(state.covered[root] for root in pattern.roots)
        if len(set(outputs)) != len(outputs):
            return None
        matched = tuple(dict.fromkeys(state.inner))
        inside = set(matched)
        for node in matched:
            outside = next((u for u in node.users if u not in inside), None) if node not in outputs else None
            if outside is not None:
                self._misses.note(len(state.covered), node, "{} needs it as well", outside.name, cause="needed")
                return None
        training = self._training(outputs[0])
        if any(self._training(node) != training for node in matched):
            why = "a part of it is computed where gradients are switched off"
            self._misses.note(len(state.covered), outputs[0], why)
            return None
        nodes = {n: v for n, v in bound.items() if n in parameters and is_tensor(v)}
        values = {n: bound[n].meta["val"] if isinstance(bound[n], Node) else bound[n] for n in parameters}
        return Match(pattern.rule, values, nodes, matched, outputs, training)


def _with_constants(state: PartialMatch, parameters: Mapping[str, Any], tolerance: float) -> Mapping[str, Any] | None:
    """The match's parameters, with those that constants it owes tell; None if one of these does not fit."""
    bound: Mapping[str, Any] | None = state.bound
    for owed in state.owed:
        if bound is not None:
            bound = with_constant(owed, parameters, bound, tolerance)
    return bound
