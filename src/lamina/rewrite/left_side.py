"""The left side of a rule traced on examples, and what in the trace its wildcards stand for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch.fx import Node

from lamina.base.fx.recording import Decompositions
from lamina.base.rule import DimensionWildcard, Rule, ScalarWildcard, TensorWildcard
from lamina.errors import BadArgument
from lamina.rewrite.arguments import Dimension
from lamina.rewrite.canonical import key_of, term_of
from lamina.rewrite.pattern import (
    Call,
    Constant,
    DimensionOf,
    DtypeOf,
    Literal,
    Pattern,
    ScalarOf,
    Size,
    SizeOf,
    Wild,
)
from lamina.rewrite.terms import ADD, MUL, Number, Term, is_tensor
from lamina.rewrite.tracing import Fragment, Untraceable, trace
from lamina.rewrite.transparent import resolve

__all__ = ["patterns_of"]

_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29)
"""Each size of a traced pattern is twice a prime of its own, so that halves and products of sizes are known."""
_RANK = 4
"""Tensors of any rank are traced with so many dimensions."""
_FARTHEST = 3
"""Wildcards for dimensions are traced with the last so many: most functions take those."""
_WIDE, _NARROW = (torch.float32, torch.float64), (torch.bfloat16, torch.float16)


def patterns_of(
    rule: Rule, decompositions: Decompositions | None, dtypes: frozenset[torch.dtype]
) -> tuple[Pattern, ...]:
    """The rule's left side at the ranks at which it looks different, for tensors of ``dtypes``.

    Casts to float32 are there in half precision only, so both kinds are traced where both occur. Raises
    ``BadArgument``.
    """
    found: list[Pattern] = []
    shapes: set[str] = set()
    for rank in rule.ranks or (_RANK,):
        kinds: list[tuple[torch.dtype, ...]] = [kind for kind in (_WIDE, _NARROW) if not dtypes.isdisjoint(kind)] or [
            _WIDE
        ]
        traced = [_Builder(rule, rank, kind[0], decompositions).build() for kind in kinds]
        if len({text for *_, text in traced}) == 1:
            kinds = [()]
        for kind, (roots, calls, text) in zip(kinds, traced, strict=False):
            if text not in shapes:
                shapes.add(text)
                depth = max(root.depth for root in roots)
                found.append(Pattern(rule, roots, roots[0].op, calls, depth, kind, _pairs(roots)))
    return tuple(found)


def _pairs(roots: Sequence[Call]) -> frozenset[tuple[Hashable, Hashable | None]]:
    """``Pattern.pairs``.

    Of a value that is used twice a match may see one use as a value that it knows, and then not look at its operands.
    """
    uses: Counter[Call] = Counter()
    left, seen = list(roots), set(roots)
    while left:
        for operand in _operands(left.pop().args):
            uses[operand] += 1
            if operand not in seen:
                seen.add(operand)
                left.append(operand)
    found: set[tuple[Hashable, Hashable | None]] = set()
    for nearest in _operands(roots[0].args):
        found.add((nearest.op, None))
        if uses[nearest] == 1:
            found.update((nearest.op, operand.op) for operand in _operands(nearest.args))
    return frozenset(found)


def _operands(args: Sequence[Any]) -> Iterator[Call]:
    for value in args:
        if isinstance(value, tuple):
            yield from _operands(value)
        elif isinstance(value, Call):
            yield value


class _Builder:
    """One trace of a rule, turned into calls with wildcards."""

    def __init__(self, rule: Rule, rank: int, dtype: torch.dtype, decompositions: Decompositions | None) -> None:
        self.rule, self.rank, self.dtype, self.decompositions = rule, rank, dtype, decompositions
        self.tensors = [(n, w) for n, w in rule.parameters if isinstance(w, TensorWildcard)]
        self.scalars: dict[str, int | float] = {}
        for name, wildcard in rule.parameters:
            if isinstance(wildcard, ScalarWildcard):
                value = wildcard.example
                self.scalars[name] = 0.6180339887 + 0.0137 * len(self.scalars) if value is None else value
        self.dimensions = [n for n, w in rule.parameters if isinstance(w, DimensionWildcard)]
        self.turn = 0
        self._start()

    def _start(self) -> None:
        self.primes: dict[str, int] = {}
        self.names: dict[Node, str] = {}
        self.made: dict[Node, Any] = {}
        self.seen: set[str] = set()
        self.equal: dict[Any, Call] = {}
        self.numbers: list[tuple[Any, Size | DimensionOf | None]] = []

    def build(self) -> tuple[tuple[Call, ...], int, str]:
        """The results of the pattern, how many calls it has, and a text that is equal for equal ones.

        A number that may be made of sizes, or be a dimension, is one only if it follows them when those are others.
        """
        self.known: list[tuple[Any, Size | DimensionOf | None]] | None = None
        fragment = self._traced()
        roots = self._roots(fragment)
        if any(source is not None for _, source in self.numbers):
            first = self.numbers
            self.turn = 1
            self._start()
            self._roots(self._traced())
            if self.dimensions and len(first) != len(self.numbers):
                raise self._error("before calls other operations for another dimension", "make a rule for each of them")
            pairs = zip(first, self.numbers, strict=False)
            known = [
                (value, source if source == other[1] and value != other[0] else None)
                for (value, source), other in pairs
            ]
            self.turn = 0
            self._start()
            fragment = self._traced()
            self.known = known if len(known) == len(first) else None
            roots = self._roots(fragment)
        missing = [n for n, _ in self.rule.parameters if n not in self.seen]
        if missing:
            raise self._error(
                f"before does not use {', '.join(missing)} as it is",
                "leave the parameter out, or compute with it as it is (not with a number made of it)",
            )
        return roots, len(self.equal), "; ".join(_text(root, {}) for root in roots)

    def _roots(self, fragment: Fragment) -> tuple[Call, ...]:
        self.names = dict(zip(fragment.inputs, (n for n, _ in self.tensors), strict=True))
        roots = []
        for result in fragment.results:
            if not is_tensor(result) or result in self.names:
                raise self._error("before returns something that it did not compute")
            roots.append(self._call(term_of(result)))
        return tuple(roots)

    def _traced(self) -> Fragment:
        def function(tensors: Sequence[Any]) -> Any:
            given = dict(zip((n for n, _ in self.tensors), tensors, strict=True))
            return self.rule.before(**given, **self.scalars, **self._dimensions())

        # Small tensors of zeros first: running an operation on them costs less than working out what it would give.
        # Tensors without data are for operations that this machine cannot run, or that look at the values.
        failure: Exception | None = None
        for device in ("cpu", "meta"):
            try:
                return trace(function, [self._example(w, device) for _, w in self.tensors], self.decompositions)
            except Untraceable as why:
                raise self._error(f"before is no pattern: {why}", "use functions that write to nothing") from None
            except Exception as error:
                failure = error
        raise self._error(
            f"before failed on example tensors: {type(failure).__name__}: {failure}",
            'say what sizes and dtypes its tensors have, as in def before(x=tensor(..., "d"), w=tensor("d"))',
        ) from failure

    def _error(self, what: str, remedy: str = "compute each result from the parameters") -> BadArgument:
        return BadArgument(f"rule {self.rule.name!r}: {what}", where=self.rule.place, remedy=remedy)

    def _example(self, wildcard: TensorWildcard, device: str) -> torch.Tensor:
        named = wildcard.sizes
        free = range(-self._leading(wildcard), 0)
        if wildcard.leading == "...":
            sizes: list[str | int] = [*(str(d - len(named)) for d in free), *named]
        else:
            sizes = [*(f"{wildcard.leading}{d}" for d in free), *named]
        shape = [s if isinstance(s, int) else 2 * self._prime(s) for s in sizes]
        return torch.zeros(shape, dtype=wildcard.dtypes[0] if wildcard.dtypes else self.dtype, device=device)

    def _leading(self, wildcard: TensorWildcard) -> int:
        """How many dimensions stand in front of the sizes: those of one name in front of the most sizes."""
        if not wildcard.leading:
            return 0
        alike = [w for _, w in self.tensors if w.leading == wildcard.leading != "..."] or [wildcard]
        return max(self.rank - max(len(w.sizes) for w in alike), 0)

    def _dimensions(self) -> dict[str, int]:
        """The dimension that stands for each wildcard: another one at each turn, if the tensors have several."""
        ranks = [self._leading(w) + len(w.sizes) for _, w in self.tensors]
        places = range(-min(max(ranks), _FARTHEST), 0)
        if self.dimensions and len(places) < max(len(self.dimensions), 2):
            raise self._error("before has more wildcards for dimensions than dimensions", "write the dimensions out")
        return {name: places[(i + self.turn) % len(places)] for i, name in enumerate(self.dimensions)}

    def _prime(self, name: str) -> int:
        if name not in self.primes:
            self.primes[name] = _PRIMES[(len(self.primes) + self.turn) % len(_PRIMES)]
        return self.primes[name]

    def _value(self, value: Any) -> Any:
        """What stands for an argument of a call."""
        if isinstance(value, Node):
            if value in self.names:
                self.seen.add(self.names[value])
                return Wild(self.names[value])
            inner, _ = resolve(value)
            if inner in self.names:
                return self._value(inner)
            if inner not in self.made:
                self.made[inner] = self._call(term_of(inner))
            return self.made[inner]
        if isinstance(value, Term):
            return self._call(value)
        if isinstance(value, tuple):
            return tuple(self._value(v) for v in value)
        return self._constant(value)

    def _constant(self, value: Any) -> Any:
        if type(value) in (int, float):
            for name, example in self.scalars.items():
                if type(example) is type(value) and example == value:
                    self.seen.add(name)
                    return ScalarOf(name)
            size = self._size(value)
            self.numbers.append((value, size))
            if self.known is not None:
                kept = self.known[len(self.numbers) - 1][1]
                size = kept if isinstance(kept, Size) else None
            if size is not None:
                return SizeOf(size)
        if isinstance(value, Dimension):
            found = next((DimensionOf(n) for n, example in self._dimensions().items() if example == value), None)
            self.numbers.append((value, found))
            if self.known is not None:
                kept = self.known[len(self.numbers) - 1][1]
                found = kept if isinstance(kept, DimensionOf) else None
            if found is not None:
                self.seen.add(found.name)
                return found
        if isinstance(value, torch.dtype) and value == self.dtype == _NARROW[0]:
            return DtypeOf()
        return Literal(value)

    def _size(self, value: float) -> Size | None:
        """``value`` as made of the example sizes."""
        if type(value) is int:
            return self._factored(value, 1)
        if not math.isfinite(value) or value == 0:
            return None
        for power, whole in ((1, value), (-1, 1 / value), (0.5, value * value), (-0.5, 1 / (value * value))):
            if whole >= min(_PRIMES) and math.isclose(whole, round(whole), rel_tol=1e-9):
                found = self._factored(round(whole), power)
                if found is not None:
                    return found
        return None

    def _factored(self, value: int, power: float) -> Size | None:
        rest = abs(value)
        names: list[str] = []
        for name, prime in self.primes.items():
            while rest and rest % prime == 0:
                names.append(name)
                rest //= prime
        if not names or value == 0:
            return None
        return Size(Fraction(rest if value > 0 else -rest, 2 ** len(names)), tuple(sorted(names)), power)

    def _call(self, term: Term) -> Call:
        """The call of a term; one call for terms that are equal."""
        constant = None
        if term.op in (ADD, MUL):
            numbers: list[Number] = []
            operands: list[Any] = []
            self._flatten(term, numbers, operands)
            args = tuple(sorted((self._value(o) for o in operands), key=_depth_of, reverse=True))
            constant = self._number(term.op == MUL, numbers)
        else:
            args = tuple(self._value(a) for a in term.args)
        key = (term.op, args, repr(constant))
        if key not in self.equal:
            self.equal[key] = Call(term.op, args, constant, 1 + _depth(args))
        return self.equal[key]

    def _flatten(self, term: Term, numbers: list[Number], operands: list[Any]) -> None:
        for operand in term.args:
            if isinstance(operand, Number):
                numbers.append(operand)
                continue
            inner: Any = operand
            if isinstance(operand, Node) and operand not in self.names:
                node, _ = resolve(operand)
                once = len(node.users) == 1 and node not in self.names
                inner = term_of(node) if once and key_of(node) == term.op else operand
            if isinstance(inner, Term) and inner.op == term.op:
                self._flatten(inner, numbers, operands)
            else:
                operands.append(operand)

    def _number(self, product: bool, numbers: Sequence[Number]) -> Constant:
        value: Any = 1 if product else 0
        scalars: list[tuple[str, bool]] = []
        sizes: list[tuple[Size, bool]] = []
        for number in numbers:
            found = self._constant(number.value)
            if isinstance(found, ScalarOf):
                scalars.append((found.name, number.inverse))
            elif isinstance(found, SizeOf):
                sizes.append((found.size, number.inverse))
            elif product:
                value = value / number.value if number.inverse else value * number.value
            else:
                value = value - number.value if number.inverse else value + number.value
        if len(scalars) > 1:
            raise self._error("two scalars are added or multiplied", "make them one scalar")
        return Constant(value, tuple(scalars), tuple(sizes))


def _depth_of(value: Any) -> int:
    return value.depth if isinstance(value, Call) else 0


def _depth(values: Sequence[Any]) -> int:
    return max((_depth(v) if isinstance(v, tuple) else _depth_of(v) for v in values), default=0)


def _text(value: Any, seen: dict[Call, int]) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(_text(v, seen) for v in value) + ")"
    if not isinstance(value, Call):
        return str(value)
    if value in seen:
        return f"#{seen[value]}"
    seen[value] = len(seen)
    return f"{value.op}{value.constant or ''}{_text(value.args, seen)}"
