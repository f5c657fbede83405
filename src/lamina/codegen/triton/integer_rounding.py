"""Rounding to integers of 8 or 16 bits by one addition, as quantisation needs it.

A rounding and a conversion to integers take units of which a multiprocessor has few: beside a division, as long as
memory takes for the bytes. Where the result is a whole number between two small bounds, one addition rounds it and
leaves its bits in place (H100, rows of 128 to int8: 151 us with them, 139 without; 134 are the bytes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lamina.codegen.triton.nest_analysis import NestAnalysis
from lamina.ir.loops import Compute, operands

__all__ = ["IntegerRoundings", "find_integer_roundings"]

_LARGEST = 1 << 21
"""Bounds up to which the sum with 1.5 * 2**23 holds a whole number in its low bits."""
_NARROW = ("int8", "uint8", "int16")


@dataclass(frozen=True, slots=True)
class IntegerRoundings:
    """Positions of equations: ``casts`` to narrow integers of whole numbers between bounds, ``roundings`` that such a
    cast does itself, and ``quotients`` of many numbers by few that nothing else than such a rounding reads.

    ``clamps`` are choices that keep a value (the first name) at or beyond a bound (the second), "maximum" or "minimum"
    in one instruction instead of two, and ``tests`` the comparisons that are then not needed.
    """

    casts: frozenset[int] = frozenset()
    roundings: frozenset[int] = frozenset()
    quotients: frozenset[int] = frozenset()
    clamps: Mapping[int, tuple[str, str, str]] = field(default_factory=dict)
    tests: frozenset[int] = frozenset()


def find_integer_roundings(facts: NestAnalysis) -> IntegerRoundings:
    """The roundings to small integers of a nest."""
    return _Finder(facts).run()


class _Finder:
    def __init__(self, facts: NestAnalysis) -> None:
        self.facts, self.body = facts, facts.body
        self.use_def = facts.use_def
        self.clamps: dict[int, tuple[str, str, str]] = {}
        self.tests: set[int] = set()

    def run(self) -> IntegerRoundings:
        casts, roundings, quotients = set[int](), set[int](), set[int]()
        for p, eqn in enumerate(self.body):
            if not isinstance(eqn, Compute) or eqn.op != "cast" or eqn.dtype not in _NARROW:
                continue
            found = self.bounded(p, eqn.ins[0])
            if found is None:
                continue
            rounding, alone = found
            casts.add(p)
            if alone:
                roundings.add(rounding)
            if (quotient := self.quotient(rounding)) is not None:
                quotients.add(quotient)
        return IntegerRoundings(
            frozenset(casts), frozenset(roundings), frozenset(quotients), self.clamps, frozenset(self.tests)
        )

    def quotient(self, rounding: int) -> int | None:
        """The division of a tile by fewer numbers, a row's scale, that only this rounding reads."""
        (name,) = operands(self.body[rounding])
        eqn, facts = self.use_def.compute(name), self.facts
        if eqn is None or eqn.op != "div" or eqn.dtype != "float32" or set(self.use_def.users(name)) != {rounding}:
            return None
        many, few = (facts.dims(facts.span(n)) for n in eqn.ins)
        return self.use_def.positions[name] if few < many else None

    def bounded(self, cast: int, name: str) -> tuple[int, bool] | None:
        """The rounding that ``name`` is, kept between two bounds, and whether nothing else reads what is between."""
        if self.facts.dtype[name] != "float32":
            return None
        low = high = False
        last, alone = {cast}, True
        clamps: dict[int, tuple[str, str, str]] = {}
        compared: set[int] = set()
        while True:
            alone = alone and set(self.use_def.users(name)) == last
            eqn = self.use_def.compute(name)
            if eqn is None:
                return None
            if eqn.op == "round":
                if not (low and high):
                    return None
                self.clamps |= clamps
                self.tests |= compared
                return self.use_def.positions[name], alone
            clamp = self.clamp(eqn)
            if clamp is None:
                return None
            inner, below, tests = clamp
            if tests:
                compared.update(tests)
                clamps[self.use_def.positions[name]] = "maximum" if below else "minimum", inner, eqn.ins[1]
            low, high = low or below, high or not below
            last = {self.use_def.positions[name], *tests}
            name = inner

    def clamp(self, eqn: Compute) -> tuple[str, bool, Sequence[int]] | None:
        """(what is kept at or beyond a small whole bound, whether from below, the comparison made for it)."""
        if eqn.op in ("maximum", "minimum"):
            for inner, bound in (eqn.ins, eqn.ins[::-1]):
                if self.small(bound):
                    return inner, eqn.op == "maximum", ()
        if eqn.op == "where":
            _, bound, inner = eqn.ins
            test = self.use_def.compute(eqn.ins[0])
            if test is None or test.op not in ("lt", "gt") or not self.small(bound) or test.ins[0] != inner:
                return None
            alone = set(self.use_def.users(test.out)) == {self.use_def.positions[eqn.out]}
            if alone and self.number(test.ins[1]) == self.number(bound):
                return inner, test.op == "lt", (self.use_def.positions[test.out],)
        return None

    def small(self, name: str) -> bool:
        """Whether a value is a whole constant of a size that the sum with 1.5 * 2**23 keeps."""
        value = self.number(name)
        return value is not None and abs(value) <= _LARGEST and value == int(value)

    def number(self, name: str) -> int | float | bool | None:
        """The number that a value is at every point; ``None`` where it varies."""
        found = self.use_def.constant(name)
        return None if found is None else found.value
