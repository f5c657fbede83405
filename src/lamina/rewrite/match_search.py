"""The search for one pattern in a graph: calls of the pattern are taken for nodes, with backtracking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from lamina.base.rule import TensorWildcard
from lamina.rewrite.flattenings import flattenings
from lamina.rewrite.match_constants import Owed, folded, is_close, is_literal, is_number, tolerance_of, with_number
from lamina.rewrite.match_sizes import with_tensor
from lamina.rewrite.misses import Misses
from lamina.rewrite.pattern import Call, Constant, DimensionOf, DtypeOf, Literal, Pattern, ScalarOf, SizeOf, Wild
from lamina.rewrite.reach import Terms
from lamina.rewrite.same_value import SameValue
from lamina.rewrite.terms import COMMUTATIVE, MUL, Term, is_tensor
from lamina.rewrite.transparent import resolve

__all__ = ["PartialMatch", "Search"]


@dataclass(frozen=True, slots=True)
class PartialMatch:
    """A match in progress.

    ``bound`` maps parameters to nodes and numbers, ``covered`` calls of the pattern to nodes, ``inner`` are the nodes
    used up; ``owed`` are constants that can be compared when all sizes are known.
    """

    bound: Mapping[str, Any]
    covered: Mapping[Call, Node]
    inner: tuple[Node, ...]
    owed: tuple[Owed, ...]

    def using(self, nodes: tuple[Node, ...]) -> PartialMatch:
        """With more nodes used up."""
        return PartialMatch(self.bound, self.covered, (*self.inner, *nodes), self.owed)

    def covering(self, call: Call, node: Node, through: tuple[Node, ...]) -> PartialMatch:
        """With ``node`` taken for one more call, and used up together with what its term covers."""
        return PartialMatch(self.bound, {**self.covered, call: node}, (*self.inner, node, *through), self.owed)

    def binding(self, bound: Mapping[str, Any]) -> PartialMatch:
        """With other parameters bound."""
        return PartialMatch(bound, self.covered, self.inner, self.owed)

    def owing(self, constant: Owed) -> PartialMatch:
        """With one more constant to compare."""
        return PartialMatch(self.bound, self.covered, self.inner, (*self.owed, constant))


class Search:
    """Finds ``pattern`` in the graph of ``terms``; tells ``misses`` what does not fit."""

    def __init__(self, pattern: Pattern, terms: Terms, same: SameValue, misses: Misses) -> None:
        self.pattern = pattern
        self._terms, self._same, self._misses = terms, same, misses
        self._parameters: dict[str, Any] = dict(pattern.rule.parameters)
        self._tolerance = 0.0

    def solutions(self, node: Node) -> Iterator[PartialMatch]:
        """Each way to see the pattern with ``node`` as its first result, the most literal one first."""
        self._tolerance = tolerance_of(self.pattern.rule, node)
        return self._roots(self.pattern.roots, [node], PartialMatch({}, {}, (), ()))

    def _fail(self, state: PartialMatch, node: Any, why: str, *about: Any, vague: bool = False) -> None:
        self._misses.note(len(state.covered), node, why, *about, vague=vague)

    def _roots(self, roots: Sequence[Call], candidates: Sequence[Node], state: PartialMatch) -> Iterator[PartialMatch]:
        """The results of the pattern one after the other, the first of them among ``candidates``."""
        first, rest = roots[0], roots[1:]
        for found in self._root(first, candidates, state):
            if rest:
                yield from self._roots(rest, self._candidates(rest[0], found), found)
            else:
                yield found

    def _root(self, root: Call, candidates: Sequence[Node], state: PartialMatch) -> Iterator[PartialMatch]:
        if root in state.covered:
            yield state
            return
        for node in candidates:
            if node.op == "call_function" and node not in state.covered.values():
                yield from self._call(root, node, self._terms.of(node), state)

    def _candidates(self, root: Call, state: PartialMatch) -> list[Node]:
        """Where a further result may be: it is covered already, or it reads something that is known."""
        if root in state.covered:
            return [state.covered[root]]
        for value in root.args:
            known = state.bound.get(value.name) if isinstance(value, Wild) else None
            known = state.covered.get(value) if isinstance(value, Call) else known
            if isinstance(known, Node):
                return [user for user in known.users if user.op == "call_function"]
        nearest = [a for a in root.args if isinstance(a, Call)]
        return [user for call in nearest for node in self._candidates(call, state) for user in node.users]

    def _value(self, wanted: Any, given: Any, state: PartialMatch) -> Iterator[PartialMatch]:
        """``given``, an argument in the graph, as ``wanted``, one of the pattern."""
        if isinstance(wanted, Wild):
            yield from self._wildcard(wanted.name, given, state)
        elif isinstance(wanted, Call):
            yield from self._operation(wanted, given, state)
        elif isinstance(wanted, tuple):
            if isinstance(given, tuple) and len(given) == len(wanted):
                yield from self._sequence(wanted, given, state)
        elif isinstance(wanted, ScalarOf):
            if is_number(given):
                bound = with_number(wanted.name, given, state.bound, self._tolerance)
                if bound is not None:
                    yield state.binding(bound)
        elif isinstance(wanted, DimensionOf):
            if isinstance(given, int) and state.bound.get(wanted.name, given) == given < 0:
                yield state.binding({**state.bound, wanted.name: int(given)})
        elif isinstance(wanted, (SizeOf, DtypeOf)):
            yield state.owing(Owed(wanted, given))
        elif isinstance(wanted, Literal) and is_literal(wanted.value, given, self._tolerance):
            yield state

    def _wildcard(self, name: str, given: Any, state: PartialMatch) -> Iterator[PartialMatch]:
        if not is_tensor(given):
            return
        known = state.bound.get(name)
        if known is not None:
            if known is given or self._same.holds(resolve(known)[0], resolve(given)[0]):
                yield state
            else:
                self._fail(state, given, "it is another tensor than {}, which is {!r} already", known.name, name)
            return
        wildcard: TensorWildcard = self._parameters[name]
        value = given.meta["val"]
        dtypes = wildcard.dtypes or self.pattern.dtypes
        if dtypes and value.dtype not in dtypes:
            self._fail(state, given, "its dtype is {}, not {}", value.dtype, " or ".join(map(str, dtypes)))
            return
        bound = with_tensor(name, wildcard, given, state.bound)
        if bound is None:
            self._fail(state, given, "its sizes {} are not those of {!r}", tuple(value.shape), name)
            return
        yield state.binding(bound)

    def _operation(self, wanted: Call, given: Any, state: PartialMatch) -> Iterator[PartialMatch]:
        if isinstance(given, Term):
            yield from self._call(wanted, None, given, state)
            return
        if not isinstance(given, Node):
            return
        node, passed = resolve(given)
        known = state.covered.get(wanted)
        if known is not None:
            if self._same.holds(resolve(known)[0], node):
                yield state
            else:
                self._fail(state, node, "it is another value than {}", known.name)
            return
        if node.op != "call_function":
            self._fail(state, node, "it is a {}, not {}", node.op, wanted.op)
            return
        yield from self._call(wanted, node, self._terms.of(node), state.using(passed) if passed else state)

    def _call(self, wanted: Call, node: Node | None, term: Term, state: PartialMatch) -> Iterator[PartialMatch]:
        """``term``, that of ``node`` or one within a term, as ``wanted``."""
        if term.op != wanted.op:
            self._fail(state, node, "it is {}, not {}", term.op, wanted.op)
            return
        state = state.using(term.through) if node is None else state.covering(wanted, node, term.through)
        if wanted.constant is not None:
            yield from self._sum_or_product(wanted, wanted.constant, node, term, state)
        elif wanted.op in COMMUTATIVE:
            for args in (term.args, term.args[::-1]):
                yield from self._sequence(wanted.args, args, state)
        elif len(wanted.args) == len(term.args):
            fits = False
            for found in self._sequence(wanted.args, term.args, state):
                fits = True
                yield found
            if not fits:
                self._fail(state, node, "the arguments of {} do not fit", wanted.op, vague=True)

    def _sequence(self, wanted: Sequence[Any], given: Sequence[Any], state: PartialMatch) -> Iterator[PartialMatch]:
        """Arguments in their order."""
        if not wanted:
            yield state
            return
        for found in self._value(wanted[0], given[0], state):
            yield from self._sequence(wanted[1:], given[1:], found)

    def _permutation(self, wanted: Sequence[Any], given: Sequence[Any], state: PartialMatch) -> Iterator[PartialMatch]:
        """Operands in any order."""
        if not wanted:
            yield state
            return
        for i, operand in enumerate(given):
            for found in self._value(wanted[0], operand, state):
                yield from self._permutation(wanted[1:], (*given[:i], *given[i + 1 :]), found)

    def _sum_or_product(
        self, wanted: Call, constant: Constant, node: Node | None, term: Term, state: PartialMatch
    ) -> Iterator[PartialMatch]:
        """The operands of a sum or product, however nested, in any order."""
        product = wanted.op == MUL
        dtype = None if node is None else node.meta["val"].dtype
        fits = False
        for seen in flattenings(term, dtype, len(wanted.args), self._terms):
            number = folded(product, seen.numbers)
            if number is None:
                continue
            if constant.scalars or constant.sizes:
                after = state.owing(Owed(constant, number, product))
            elif is_close(constant.value, number, self._tolerance):
                after = state
            else:
                continue
            for found in self._permutation(wanted.args, seen.operands, after.using(seen.used)):
                fits = True
                yield found
        if not fits:
            self._fail(state, node, "the operands of {} do not fit", wanted.op, vague=True)
