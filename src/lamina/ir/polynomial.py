"""Canonical integer polynomials: sums of integer multiples of products of atoms, one object for each value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from lamina.base.bounded import remember

__all__ = ["Monomial", "Polynomial", "divided", "has_remainder", "order"]

Monomial: TypeAlias = tuple[Any, ...]
"""A product of atoms, in order. An atom is hashable and says by ``rank`` where it stands among other kinds of atoms,
by ``is_remainder`` whether it may join with a quotient, and by ``bounds()`` its lowest and highest value.
"""

_MOST = 1 << 16
"""Entries of a cache. A training step of a GPT with twelve layers asks for fewer than a hundred."""
_ranks: dict[Any, tuple[int, str]] = {}
"""By atom."""
_places: dict[Monomial, tuple[tuple[tuple[int, str], ...], bool]] = {}
"""Where a monomial stands, and whether a remainder is among its factors."""


class Polynomial:
    """``const`` plus, for each (monomial, coefficient) of ``terms``, their product. Immutable and hash-consed.

    A subclass says in ``_collected`` what a sum of terms simplifies to; slots of its own start as None. Equality is
    identity, so the table of those that exist is never emptied: some hundreds after a GPT of twelve layers.
    """

    __slots__ = ("_hash", "_text", "const", "terms")
    _interned: ClassVar[dict[tuple[tuple[tuple[Monomial, int], ...], int], Any]]
    terms: tuple[tuple[Monomial, int], ...]
    const: int
    _hash: int
    _text: str | None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._interned = {}

    def __new__(cls, terms: tuple[tuple[Monomial, int], ...], const: int) -> Self:
        key = (terms, const)
        found = cls._interned.get(key)
        if found is None:
            found = object.__new__(cls)
            set_ = object.__setattr__
            set_(found, "terms", terms)
            set_(found, "const", const)
            # Equal to its number where it is one, so hashed like it.
            set_(found, "_hash", hash(key if terms else const))
            set_(found, "_text", None)
            for slot in cls.__slots__:
                set_(found, slot, None)
            found = cls._interned.setdefault(key, found)
        return found  # type: ignore[no-any-return]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> tuple[type[Self], tuple[object, int]]:
        return (type(self), (self.terms, self.const))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, int):
            return not self.terms and self.const == other
        return False

    @classmethod
    def _collected(cls, total: dict[Monomial, int], const: int) -> Self:
        """The sum of the terms (monomial to coefficient, zeros too) and ``const``."""
        raise NotImplementedError

    def __add__(self, other: Self | int) -> Self:
        make = type(self)
        if isinstance(other, int):
            return make(self.terms, self.const + other) if other else self
        if self is other:
            return self * 2
        if not other.terms:
            return make(self.terms, self.const + other.const) if other.const else self
        if not self.terms:
            return make(other.terms, self.const + other.const) if self.const else other
        total = dict(self.terms)
        for mono, coef in other.terms:
            total[mono] = total.get(mono, 0) + coef
        return self._collected(total, self.const + other.const)

    __radd__ = __add__

    def __neg__(self) -> Self:
        return self * -1

    def __sub__(self, other: Self | int) -> Self:
        return self + (other * -1)

    def __rsub__(self, other: Self | int) -> Self:
        return (self * -1) + other

    def __mul__(self, other: Self | int) -> Self:
        if not isinstance(other, int):
            if other.terms:
                if not self.terms:
                    return other * self.const
                total: dict[Monomial, int] = {}
                for m1, c1 in (*self.terms, *((((), self.const),) if self.const else ())):
                    for m2, c2 in (*other.terms, *((((), other.const),) if other.const else ())):
                        mono = _times(m1, m2)
                        total[mono] = total.get(mono, 0) + c1 * c2
                return self._collected(total, total.pop((), 0))
            other = other.const
        if other == 1:
            return self
        if other == 0:
            return type(self)((), 0)
        return type(self)(tuple((m, c * other) for m, c in self.terms), self.const * other)

    __rmul__ = __mul__

    @property
    def is_int(self) -> bool:
        """Whether the value is a plain integer."""
        return not self.terms

    def __int__(self) -> int:
        if self.terms:
            raise TypeError(f"{self} is not a plain integer")
        return self.const

    def _range(self) -> tuple[int | None, Self | None]:
        """Lowest value as a number and highest as a polynomial, from the ``bounds()`` of the atoms; None: unknown."""
        make = type(self)
        low: int | None = self.const
        high: Self | None = make((), self.const)
        for mono, coef in self.terms:
            mono_low: int | None = 1
            mono_high: Self | None = make((), 1)
            for atom in mono:
                a_low, a_high = atom.bounds()
                if len(mono) > 1 and (a_low is None or a_low < 0):
                    mono_low, mono_high = None, None
                    break
                mono_low = mono_low * a_low if mono_low is not None and a_low is not None else None
                mono_high = mono_high * a_high if mono_high is not None and a_high is not None else None
            if coef < 0:
                swapped = mono_high.const if mono_high is not None and mono_high.is_int else None
                mono_high = make((), mono_low) if mono_low is not None else None
                mono_low = swapped
            low = low + coef * mono_low if low is not None and mono_low is not None else None
            high = high + mono_high * coef if high is not None and mono_high is not None else None
        return low, high

    def text(self, atom: Callable[[Any], str] = str) -> str:
        """The value as Python (and C, when ``atom`` renders divisions) source."""
        parts: list[str] = []
        for mono, coef in self.terms:
            factors = [atom(a) for a in mono]
            if coef == -1:
                parts.append("-" + "*".join(factors))
            elif coef == 1:
                parts.append("*".join(factors))
            else:
                parts.append("*".join([*factors, str(coef)]) if coef >= 0 else f"-{'*'.join([*factors, str(-coef)])}")
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts).replace("+ -", "- ")

    def __str__(self) -> str:
        if self._text is None:
            object.__setattr__(self, "_text", self.text())
        assert self._text is not None
        return self._text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"


_Polynomial = TypeVar("_Polynomial", bound=Polynomial)


def divided(num: _Polynomial, den: _Polynomial) -> tuple[_Polynomial, _Polynomial]:
    """Quotient and rest, ``num == quotient * den + rest``, with every provably divisible term in the quotient."""
    make = type(num)
    if den.is_int:
        d = den.const
        quotient = [(m, c // d) for m, c in num.terms if c % d == 0]
        rest = [(m, c) for m, c in num.terms if c % d]
        return make(tuple(quotient), num.const // d), make(tuple(rest), num.const % d)
    if len(den.terms) != 1 or den.const:
        return make((), 0), num
    dmono, dcoef = den.terms[0]
    q, r = make((), 0), make((), num.const)
    for mono, coef in num.terms:
        left: list[Any] | None = list(mono)
        for atom in dmono:
            if left is not None and atom in left:
                left.remove(atom)
            else:
                left = None
                break
        if left is not None and coef % dcoef == 0:
            q = q + (make(((tuple(left), coef // dcoef),), 0) if left else make((), coef // dcoef))
        else:
            r = r + make(((mono, coef),), 0)
    return q, r


def _rank(atom: Any) -> tuple[int, str]:
    found = _ranks.get(atom)
    if found is None:
        found = remember(_ranks, atom, (atom.rank, str(atom)), _MOST)
    return found


def _times(left: Monomial, right: Monomial) -> Monomial:
    if not left:
        return right
    if not right:
        return left
    return tuple(sorted(left + right, key=_rank))


def _place(mono: Monomial) -> tuple[tuple[tuple[int, str], ...], bool]:
    found = _places.get(mono)
    if found is None:
        place = (tuple(_rank(a) for a in mono), any(a.is_remainder for a in mono))
        found = remember(_places, mono, place, _MOST)
    return found


def order(term: tuple[Monomial, int]) -> tuple[tuple[int, str], ...]:
    """Sorts terms by where their monomials stand among others."""
    return _place(term[0])[0]


def has_remainder(mono: Monomial) -> bool:
    """Whether a remainder is a factor of the monomial."""
    return _place(mono)[1]
