"""Finding a pattern in a graph."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from lamina.base.rule import Match, TensorWildcard
from lamina.base.torch_private import OpOverload
from lamina.rewrite.pattern import Call, Constant, DtypeOf, Literal, Pattern, ScalarOf, Size, SizeOf, Wild
from lamina.rewrite.reach import Terms
from lamina.rewrite.terms import COMMUTATIVE, MUL, Number, Term, is_tensor, resolve
from lamina.rewrite.torch_private import same_number, same_size, symbol_of

__all__ = ["Matcher", "Miss"]

_MOST_SOLUTIONS = 24
"""So many ways to see one place as the pattern are tried before the place is given up."""


_DEEPEST = 6
"""Two values are recognised as one through so many calls on each other."""


@dataclass(frozen=True, slots=True)
class Miss:
    """How far a match came: nodes that fitted, the node that did not, and why.

    ``vague`` is one that says no more than that the operands of the node do not fit.
    """

    fitted: int
    node: Node
    why: str
    vague: bool = False

    @property
    def nearness(self) -> tuple[int, bool, bool]:
        """Larger for a nearer miss."""
        return self.fitted, not self.vague, self.node.op.startswith("call")


@dataclass(frozen=True, slots=True)
class _State:
    """A match in progress.

    ``bound`` maps parameters to nodes and numbers, ``covered`` calls of the pattern to nodes, ``inner`` are the nodes
    used up; ``later`` are constants that can be compared when all sizes are known.
    """

    bound: dict[str, Any]
    covered: dict[Call, Node]
    inner: tuple[Node, ...]
    later: tuple[tuple[Any, Any, bool | None], ...]

    def using(self, nodes: tuple[Node, ...], covered: dict[Call, Node] | None = None) -> _State:
        """With more nodes used up, and other calls covered."""
        return _State(self.bound, self.covered if covered is None else covered, (*self.inner, *nodes), self.later)

    def binding(self, bound: dict[str, Any]) -> _State:
        """With other parameters bound."""
        return _State(bound, self.covered, self.inner, self.later)

    def owing(self, wanted: Any, given: Any, product: bool | None) -> _State:
        """With one more constant to compare."""
        return _State(self.bound, self.covered, self.inner, (*self.later, (wanted, given, product)))


class Matcher:
    """Matches one pattern at a time. ``training`` tells of a node whether gradients are recorded there.

    Of memory that is written to (``untouchable``) no two reads are taken for the same. ``miss`` is the nearest miss if
    ``explain`` is set.
    """

    def __init__(
        self,
        training: Callable[[Node], bool],
        untouchable: frozenset[Node] = frozenset(),
        explain: bool = False,
    ) -> None:
        self.training, self.untouchable, self.explain = training, untouchable, explain
        self.miss: Miss | None = None
        self._terms = Terms()
        self._term = self._terms.of
        self.pattern: Pattern = None  # type: ignore[assignment]
        self.wildcards: dict[str, Any] = {}

    def forget(self) -> None:
        """The graph has changed."""
        self._terms.forget()

    def matches(self, pattern: Pattern, root: Node) -> Iterator[Match]:
        """Each way to see ``pattern`` with ``root`` as its first result, the most literal one first."""
        if not (self.explain or self._terms.may_be(pattern, root)):
            return
        self.pattern, self.wildcards = pattern, dict(pattern.rule.parameters)
        start = _State({}, {}, (), ())
        for state in itertools.islice(self._roots(pattern.roots, [root], start), _MOST_SOLUTIONS):
            match = self._finished(state)
            if match is not None:
                yield match

    def _fail(self, state: _State, node: Any, why: str, *about: Any, vague: bool = False) -> None:
        """Note a near miss; ``why`` has a place for each of ``about``, which are only named if somebody asks."""
        if self.explain and isinstance(node, Node):
            miss = Miss(len(state.covered), node, why.format(*about), vague)
            old = self.miss
            # Of misses as near as each other the later node is told: the earlier ones are its operands.
            if old is None or (miss.nearness, miss.node) > (old.nearness, old.node):
                self.miss = miss

    def _roots(self, roots: Sequence[Call], candidates: Sequence[Node], state: _State) -> Iterator[_State]:
        first, rest = roots[0], roots[1:]
        if first in state.covered:
            candidates = ()
            found = state
            if rest:
                yield from self._roots(rest, self._candidates(rest[0], found), found)
            else:
                yield found
        for node in candidates:
            if node in state.covered.values() or node.op != "call_function":
                continue
            for found in self._call(first, node, self._term(node), state):
                if rest:
                    yield from self._roots(rest, self._candidates(rest[0], found), found)
                else:
                    yield found

    def _candidates(self, root: Call, state: _State) -> list[Node]:
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

    def _value(self, wanted: Any, given: Any, state: _State) -> Iterator[_State]:
        """``given``, an argument in the graph, as ``wanted``, one of the pattern."""
        if isinstance(wanted, Wild):
            yield from self._wildcard(wanted.name, given, state)
        elif isinstance(wanted, Call):
            yield from self._operation(wanted, given, state)
        elif isinstance(wanted, tuple):
            if isinstance(given, tuple) and len(given) == len(wanted):
                yield from self._sequence(wanted, given, state)
        elif isinstance(wanted, ScalarOf):
            if _is_number(given):
                yield from self._number(wanted.name, given, state)
        elif isinstance(wanted, (SizeOf, DtypeOf)):
            yield state.owing(wanted, given, None)
        elif isinstance(wanted, Literal) and self._equal(wanted.value, given):
            yield state

    def _equal(self, wanted: Any, given: Any) -> bool:
        if isinstance(wanted, float) and isinstance(given, (int, float)) and not isinstance(given, bool):
            return self._close(wanted, given)
        if isinstance(wanted, bool) or isinstance(given, (bool, Node)):
            return wanted is given
        return bool(wanted == given)

    def _close(self, a: float, b: float) -> bool:
        return a == b or math.isclose(a, b, rel_tol=self.pattern.rule.tolerance)

    def _operation(self, wanted: Call, given: Any, state: _State) -> Iterator[_State]:
        if isinstance(given, Term):
            yield from self._call(wanted, None, given, state)
            return
        if not isinstance(given, Node):
            return
        node, passed = resolve(given)
        known = state.covered.get(wanted)
        if known is not None:
            if self._same(resolve(known)[0], node):
                yield state
            else:
                self._fail(state, node, "it is another value than {}", known.name)
            return
        if node.op != "call_function":
            self._fail(state, node, "it is a {}, not {}", node.op, wanted.op)
            return
        if passed:
            state = state.using(tuple(passed))
        yield from self._call(wanted, node, self._term(node), state)

    def _call(self, wanted: Call, node: Node | None, term: Term, state: _State) -> Iterator[_State]:
        if term.op != wanted.op:
            self._fail(state, node, "it is {}, not {}", term.op, wanted.op)
            return
        used = term.through if node is None else (node, *term.through)
        covered = state.covered if node is None else {**state.covered, wanted: node}
        state = state.using(used, covered)
        if wanted.constant is not None:
            yield from self._operands(wanted, node, term, state)
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

    def _sequence(self, wanted: Sequence[Any], given: Sequence[Any], state: _State) -> Iterator[_State]:
        if not wanted:
            yield state
            return
        for found in self._value(wanted[0], given[0], state):
            yield from self._sequence(wanted[1:], given[1:], found)

    def _operands(self, wanted: Call, node: Node | None, term: Term, state: _State) -> Iterator[_State]:
        """The operands of a sum or product, however nested, in any order."""
        product = wanted.op == MUL
        dtype = None if node is None else node.meta["val"].dtype
        numbers = [a for a in term.args if isinstance(a, Number)]
        operands = [a for a in term.args if not isinstance(a, Number)]
        count = len(wanted.args)
        fits = False
        for cut in self._cuts(wanted.op, dtype, count, tuple(numbers), tuple(operands), (), 0):
            found_numbers, found_operands, used = cut
            assert wanted.constant is not None
            constant = _folded(product, found_numbers)
            if constant is None:
                continue
            after = self._folded_constant(wanted.constant, constant, product, state)
            if after is None:
                continue
            for found in self._assign(wanted.args, found_operands, after.using(used)):
                fits = True
                yield found
        if not fits:
            self._fail(state, node, "the operands of {} do not fit", wanted.op, vague=True)

    def _cuts(
        self,
        op: Any,
        dtype: Any,
        count: int,
        numbers: tuple[Number, ...],
        operands: tuple[Any, ...],
        used: tuple[Node, ...],
        start: int,
    ) -> Iterator[tuple[tuple[Number, ...], tuple[Any, ...], tuple[Node, ...]]]:
        """Every way to see nested sums (or products) as one of ``count`` operands: numbers, operands, nodes used up."""
        if len(operands) > count:
            return
        if len(operands) == count:
            yield numbers, operands, used
        for i in range(start, len(operands)):
            opened = self._opened(op, dtype, operands[i])
            if opened is None:
                continue
            inner, nodes = opened
            yield from self._cuts(
                op,
                dtype,
                count,
                (*numbers, *(a for a in inner.args if isinstance(a, Number))),
                (*operands[:i], *(a for a in inner.args if not isinstance(a, Number)), *operands[i + 1 :]),
                (*used, *nodes, *inner.through),
                i,
            )

    def _opened(self, op: Any, dtype: Any, operand: Any) -> tuple[Term, tuple[Node, ...]] | None:
        """An operand that is itself such a sum (or product) and is used nowhere else."""
        if isinstance(operand, Term):
            return (operand, ()) if operand.op == op else None
        if not is_tensor(operand):
            return None
        node, passed = resolve(operand)
        if node.op != "call_function" or any(len(n.users) != 1 for n in (node, *passed)):
            return None
        term = self._term(node)
        if term.op != op or (dtype is not None and node.meta["val"].dtype != dtype):
            return None
        return term, (node, *passed)

    def _assign(self, wanted: Sequence[Any], given: Sequence[Any], state: _State) -> Iterator[_State]:
        if not wanted:
            yield state
            return
        for i, operand in enumerate(given):
            for found in self._value(wanted[0], operand, state):
                yield from self._assign(wanted[1:], (*given[:i], *given[i + 1 :]), found)

    def _folded_constant(self, wanted: Constant, given: Any, product: bool, state: _State) -> _State | None:
        if wanted.scalars or wanted.sizes:
            return state.owing(wanted, given, product)
        return state if self._close(wanted.value, given) else None

    def _wildcard(self, name: str, given: Any, state: _State) -> Iterator[_State]:
        if not is_tensor(given):
            return
        known = state.bound.get(name)
        if known is not None:
            if known is given or self._same(resolve(known)[0], resolve(given)[0]):
                yield state
            else:
                self._fail(state, given, "it is another tensor than {}, which is {!r} already", known.name, name)
            return
        wildcard: TensorWildcard = self.wildcards[name]
        value = given.meta["val"]
        dtypes = wildcard.dtypes or self.pattern.dtypes
        if dtypes and value.dtype not in dtypes:
            self._fail(state, given, "its dtype is {}, not {}", value.dtype, " or ".join(map(str, dtypes)))
            return
        bound = _with_sizes(wildcard, value, {**state.bound, name: given})
        if bound is None:
            self._fail(state, given, "its sizes {} are not those of {!r}", tuple(value.shape), name)
            return
        yield state.binding(bound)

    def _number(self, name: str, given: Any, state: _State) -> Iterator[_State]:
        known = state.bound.get(name)
        if known is None:
            yield state.binding({**state.bound, name: given})
        elif _is_plain(known) and _is_plain(given) and self._close(known, given):
            yield state

    def _finished(self, state: _State) -> Match | None:
        """The match, if constants made of sizes fit, and nothing inside is needed outside."""
        found: _State | None = state
        for wanted, given, product in state.later:
            if found is None:
                return None
            found = self._compared(wanted, given, product, found)
        if found is None:
            return None
        state = found
        outputs = tuple(state.covered[root] for root in self.pattern.roots)
        matched = tuple(dict.fromkeys(state.inner))
        if len(set(outputs)) != len(outputs):
            return None
        inside = set(matched)
        for node in matched:
            if node in outputs:
                continue
            outside = next((user for user in node.users if user not in inside), None)
            if outside is not None:
                self._fail(state, node, "{} needs it as well", outside.name)
                return None
        names = dict(self.pattern.rule.parameters)
        nodes = {n: v for n, v in state.bound.items() if n in names and is_tensor(v)}
        values = {n: state.bound[n].meta["val"] if isinstance(state.bound[n], Node) else state.bound[n] for n in names}
        training = self.training(outputs[0])
        if any(self.training(node) != training for node in matched):
            self._fail(state, outputs[0], "a part of it is computed where gradients are switched off")
            return None
        return Match(self.pattern.rule, values, nodes, matched, outputs, training)

    def _compared(self, wanted: Any, given: Any, product: bool | None, state: _State) -> _State | None:
        if isinstance(wanted, DtypeOf):
            name = next(n for n, w in self.wildcards.items() if isinstance(w, TensorWildcard) and not w.dtypes)
            return state if state.bound[name].meta["val"].dtype == given else None
        if isinstance(wanted, SizeOf):
            size = self._size(wanted.size, state)
            if size is None or not self._is_size(size, given):
                return None
            return state
        value = wanted.value
        for part, inverse in wanted.sizes:
            size = self._size(part, state)
            if not _is_plain(size):
                return None
            value = _applied(bool(product), value, size, inverse)
        if not wanted.scalars:
            return state if self._close(value, given) else None
        ((name, inverse),) = wanted.scalars
        if product:
            if value == 0 or (inverse and given == 0):
                return None
            rest = given if value == 1 else given / value
            number = 1 / rest if inverse else rest
        else:
            rest = given if value == 0 else given - value
            number = -rest if inverse else rest
        return next(self._number(name, number, state), None)

    def _same(self, a: Any, b: Any, depth: int = _DEEPEST) -> bool:
        """Whether two nodes have one value: they are one, or the same call of the same operands."""
        if a is b:
            return True
        if not (isinstance(a, Node) and isinstance(b, Node)):
            if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)) and len(a) == len(b):
                return all(self._same(x, y, depth) for x, y in zip(a, b, strict=True))
            return type(a) is type(b) and repr(a) == repr(b)
        if a.target is not b.target or a.op != "call_function" or depth == 0 or not _is_pure(a.target):
            return False
        if a in self.untouchable or b in self.untouchable or self.training(a) != self.training(b):
            return False
        if a.kwargs.keys() != b.kwargs.keys():
            return False
        pairs = [(a.args, b.args), *((a.kwargs[k], b.kwargs[k]) for k in a.kwargs)]
        return all(self._same(x, y, depth - 1) for x, y in pairs)

    def _is_size(self, wanted: Any, given: Any) -> bool:
        if isinstance(given, Node):
            given = given.meta.get("val")
        if symbol_of(wanted) is not None or symbol_of(given) is not None:
            return same_number(wanted, given)
        return _is_plain(given) and self._close(wanted, given)

    def _size(self, size: Size, state: _State) -> Any:
        """The number that ``size`` is in this match; None if its tensors disagree or have no such dimension."""
        total: Any = 1
        for name in size.names:
            own = name.startswith("-")
            found = _own_size(name, self.wildcards, state.bound) if own else state.bound.get(f"#{name}")
            if found is None:
                return None
            total = total * found
        ratio = size.ratio
        if ratio.numerator != 1:
            total = total * ratio.numerator
        if ratio.denominator != 1:
            if not isinstance(total, int) or total % ratio.denominator:
                return None
            total = total // ratio.denominator
        if size.power == 1:
            return total
        return float(total) ** size.power if isinstance(total, int) and total > 0 else None


def _own_size(name: str, wildcards: dict[str, Any], bound: dict[str, Any]) -> Any:
    """The size of dimension ``name`` (from the last) that all tensors without a name for it have."""
    place, found = int(name), None
    for parameter, wildcard in wildcards.items():
        if not isinstance(wildcard, TensorWildcard) or wildcard.rank is not None or -place < len(wildcard.sizes):
            continue
        shape = bound[parameter].meta["val"].shape
        if len(shape) < -place:
            return None
        if found is not None and not same_size(found, shape[place]):
            return None
        found = shape[place]
    return found


def _with_sizes(wildcard: TensorWildcard, value: torch.Tensor, bound: dict[str, Any]) -> dict[str, Any] | None:
    """``bound`` with the named sizes of ``value``; None if they are not what the wildcard says."""
    sizes = wildcard.sizes
    if sizes[0] is ...:
        sizes = sizes[1:]
        if value.dim() < len(sizes):
            return None
    elif value.dim() != len(sizes):
        return None
    for i, size in enumerate(sizes):
        actual = value.shape[i - len(sizes)]
        if isinstance(size, int):
            if not same_size(size, actual):
                return None
        elif not same_size(bound.setdefault(f"#{size}", actual), actual):
            return None
    return bound


@functools.cache
def _is_pure(target: Any) -> bool:
    """Whether two calls with the same operands give the same."""
    if target is operator.getitem:
        return True
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded not in target.tags


def _is_number(value: Any) -> bool:
    if isinstance(value, Node):
        return not isinstance(value.meta.get("val"), (torch.Tensor, tuple, list, bool, type(None)))
    return _is_plain(value)


def _is_plain(value: Any) -> bool:
    return type(value) in (int, float)


def _folded(product: bool, numbers: Sequence[Number]) -> Any:
    """All numbers as one; None if that is not a number."""
    if len(numbers) == 1 and not numbers[0].inverse:
        return numbers[0].value
    total: Any = 1 if product else 0
    for number in numbers:
        if product and number.inverse and number.value == 0:
            return None
        total = _applied(product, total, number.value, number.inverse)
    return total


def _applied(product: bool, total: Any, value: Any, inverse: bool) -> Any:
    if product:
        return total / value if inverse else total * value
    return total - value if inverse else total + value
