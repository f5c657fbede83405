"""Index expressions: canonical integer polynomials over axes, sizes and loaded indices.

An ``Expr`` is a sum of integer multiples of monomials; a monomial is a product of atoms. Because the form is
canonical and hash-consed, two expressions are equal exactly when they are the same object, and most
simplifications (collecting terms, ``(i // c) * c + i % c -> i``) happen while an expression is built.
Axes carry their extent, so division and remainder use the range of what they divide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any, ClassVar, Self, TypeAlias

from lamina.base.bounded import remember
from lamina.ir.polynomial import Monomial, Polynomial, divided, has_remainder, order

__all__ = ["Atom", "Axis", "Div", "Expr", "Loaded", "Mod", "Size", "as_expr", "as_expr_atom", "ceildiv", "prod"]


class _Atom:
    """What most kinds of atoms have in common."""

    __slots__ = ()
    rank: ClassVar[int] = 2
    is_remainder: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Size(_Atom):
    """An integer known only at run time: at least ``low`` (a size at least 0), or any at all where that is ``None``."""

    name: str
    low: int | None = 0
    rank: ClassVar[int] = 0

    def __hash__(self) -> int:
        return hash(self.name)

    def bounds(self) -> tuple[int | None, Expr | None]:
        return self.low, as_expr(self)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Axis(_Atom):
    """A loop variable running over ``0 <= name < extent``."""

    name: str
    extent: Expr
    rank: ClassVar[int] = 1

    def __hash__(self) -> int:
        return hash(self.name) * 3 + self.extent._hash

    def bounds(self) -> tuple[int | None, Expr | None]:
        return 0, self.extent - 1

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Loaded(_Atom):
    """An integer that the nest computes or loads: the index of a gather or scatter. Known to be in ``[0, bound)``."""

    name: str
    bound: Expr

    def __hash__(self) -> int:
        return hash(self.name) * 3 + self.bound._hash

    def bounds(self) -> tuple[int | None, Expr | None]:
        return 0, self.bound - 1

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Div(_Atom):
    """``floor(num / den)`` with ``den > 0`` that does not simplify; ``num`` may be negative."""

    num: Expr
    den: Expr

    def __hash__(self) -> int:
        return self.num._hash * 3 + self.den._hash

    def bounds(self) -> tuple[int | None, Expr | None]:
        low, high = self.num.bounds()
        if not self.den.is_int:
            return (0 if low is not None and low >= 0 else None), (high if low is not None and low >= 0 else None)
        d = self.den.const
        return (low // d if low is not None else None), (high // d if high is not None else None)

    def __str__(self) -> str:
        return f"(({self.num}) // ({self.den}))"


@dataclass(frozen=True, slots=True)
class Mod(_Atom):
    """``num - den * floor(num / den)`` with ``den > 0`` that does not simplify."""

    num: Expr
    den: Expr
    is_remainder: ClassVar[bool] = True

    def __hash__(self) -> int:
        return self.num._hash * 5 + self.den._hash

    def bounds(self) -> tuple[int | None, Expr | None]:
        return 0, self.den - 1

    def __str__(self) -> str:
        return f"(({self.num}) % ({self.den}))"


Atom: TypeAlias = Size | Axis | Loaded | Div | Mod
ExprLike: TypeAlias = "Expr | int"


class Expr(Polynomial):
    """A canonical integer expression. Immutable; build with ``as_expr`` and arithmetic."""

    __slots__ = ("_atoms", "_axes", "_bounds")
    _atoms: frozenset[Atom] | None
    _axes: frozenset[str] | None
    _bounds: tuple[int | None, Expr | None] | None

    @classmethod
    def _collected(cls, total: dict[Monomial, int], const: int) -> Self:
        return _collect(total, const)  # type: ignore[return-value]

    def __floordiv__(self, other: ExprLike) -> Expr:
        return _floordiv(self, as_expr(other))

    def __mod__(self, other: ExprLike) -> Expr:
        return _mod(self, as_expr(other))

    def atoms(self) -> frozenset[Atom]:
        """Every atom in the expression, inside divisions too."""
        atoms = self._atoms
        if atoms is None:
            found: set[Atom] = set()
            for mono, _ in self.terms:
                for atom in mono:
                    found |= _atoms_of(atom)
            atoms = frozenset(found)
            object.__setattr__(self, "_atoms", atoms)
        return atoms

    def axes(self) -> frozenset[str]:
        """Names of the axes the expression varies over directly (not through loaded values)."""
        axes = self._axes
        if axes is None:
            axes = frozenset(a.name for a in self.atoms() if isinstance(a, Axis))
            object.__setattr__(self, "_axes", axes)
        return axes

    def bounds(self) -> tuple[int | None, Expr | None]:
        """Lowest value as an integer and highest as an expression of sizes; ``None`` where unknown."""
        bounds = self._bounds
        if bounds is None:
            bounds = self._range()
            object.__setattr__(self, "_bounds", bounds)
        return bounds

    def nonnegative(self) -> bool:
        """Whether the expression is provably at least zero."""
        low = self.bounds()[0]
        return low is not None and low >= 0

    def below(self, limit: ExprLike) -> bool:
        """Whether the expression is provably less than ``limit``."""
        high = self.bounds()[1]
        return high is not None and (as_expr(limit) - high - 1).nonnegative()

    def coefficient(self, atom: Atom) -> Expr | None:
        """Factor of ``atom`` where the expression is linear in it, else ``None``. Zero when absent."""
        factor: Expr = _ZERO
        for mono, coef in self.terms:
            count = mono.count(atom)
            if count > 1 or any(isinstance(a, Div | Mod) and atom in _atoms_of(a) for a in mono):
                return None
            if count == 1:
                rest = list(mono)
                rest.remove(atom)
                factor = factor + Expr(((tuple(rest), coef),), 0) if rest else factor + coef
        return factor

    def substitute(self, mapping: Mapping[Atom, ExprLike]) -> Expr:
        """Replace atoms (axes, sizes, loaded values) by expressions, inside divisions too."""
        if not self.terms or mapping.keys().isdisjoint(self.atoms()):
            return self
        const = self.const
        total: dict[Monomial, int] = {}
        for mono, coef in self.terms:
            term: Expr | None = None
            for atom in mono:
                new = _substitute_atom(atom, mapping)
                term = new if term is None else term * new
            assert term is not None
            const += term.const * coef
            for made, factor in term.terms:
                total[made] = total.get(made, 0) + factor * coef
        return _collect(total, const)

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The value with every named atom looked up in ``values`` (integers, or arrays for axes)."""
        total: Any = self.const
        for mono, coef in self.terms:
            term: Any = coef
            for atom in mono:
                term = term * _evaluate_atom(atom, values)
            total = total + term
        return total


_ZERO = Expr((), 0)


def as_expr(value: ExprLike | Size | Axis | Loaded) -> Expr:
    """An integer or an atom as an expression; an expression is returned as it is."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, int):
        return Expr((), int(value))
    return Expr((((value,), 1),), 0)


def prod(values: Iterable[ExprLike]) -> Expr:
    """Product of expressions; one when there is none."""
    total: Expr = Expr((), 1)
    for value in values:
        total = total * value
    return total


def ceildiv(num: ExprLike, den: ExprLike) -> Expr:
    """``ceil(num / den)`` for a positive ``den``."""
    return (as_expr(num) + den - 1) // den


def _collect(total: dict[Monomial, int], const: int) -> Expr:
    terms = {m: c for m, c in total.items() if c}
    if len(terms) < 2:
        return Expr(tuple(terms.items()), const)
    for mono in terms:
        for atom in mono if has_remainder(mono) else ():
            if isinstance(atom, Mod):
                joined = _join_mod(terms, mono, atom, const) or _join_mods(terms, mono, atom, const)
                if joined is not None:
                    return joined
        if len(mono) == 1 and isinstance(mono[0], Div):
            joined = _join_quotient(terms, mono, mono[0], const)
            if joined is not None:
                return joined
    return Expr(tuple(sorted(terms.items(), key=order)), const)


def _join_mod(terms: dict[Monomial, int], mono: Monomial, atom: Mod, const: int) -> Expr | None:
    """``k*(e % d) + k*d*(e // d) -> k*e``."""
    rest = list(mono)
    rest.remove(atom)
    quotient = _floordiv(atom.num, atom.den)
    if len(quotient.terms) != 1 or quotient.const:
        return None
    (partner, partner_coef) = quotient.terms[0]
    scaled = Expr(((partner, partner_coef),), 0) * atom.den
    if rest:
        scaled = scaled * Expr(((tuple(rest), 1),), 0)
    coef = terms[mono]
    targets = {target: coef * factor for target, factor in scaled.terms}
    if mono in targets or any(terms.get(target) != factor for target, factor in targets.items()):
        return None
    left = {m: c for m, c in terms.items() if m != mono and m not in targets}
    joined = atom.num * coef
    if rest:
        joined = joined * Expr(((tuple(rest), 1),), 0)
    return Expr(tuple(sorted(left.items(), key=order)), const) + joined


def _join_mods(terms: dict[Monomial, int], mono: Monomial, atom: Mod, const: int) -> Expr | None:
    """``k*(e % d) + k*d*(f % m) -> k*((d*f + e % d) % (d*m))``, where ``d*f + e % d`` is simpler than its parts.

    Such are the places of a row that was cut into dimensions, where the row is now gone over in pieces of ``d``.
    """
    if len(mono) != 1 or not atom.den.is_int:
        return None
    coef, d = terms[mono], atom.den.const
    for other, factor in terms.items():
        (partner, *more) = other
        if more or factor != coef * d or not isinstance(partner, Mod) or not partner.den.is_int:
            continue
        whole = partner.num * d + Expr(((mono, 1),), 0)
        if any(isinstance(a, Mod) for m, _ in whole.terms for a in m):
            continue
        left = {m: c for m, c in terms.items() if m not in (mono, other)}
        return Expr(tuple(sorted(left.items(), key=order)), const) + _mod(whole, partner.den * d) * coef
    return None


def _join_quotient(terms: dict[Monomial, int], mono: Monomial, atom: Div, const: int) -> Expr | None:
    """``k*(f % d) + k*d*(f // d) -> k*f`` of an ``f`` with remainders, whose own remainder is simpler: ``e % d`` of
    ``e % (n*d)``, and ``i`` of ``(d*j + i) % (n*d)``.
    """
    if not atom.den.is_int or not any(has_remainder(m) for m, _ in atom.num.terms):
        return None
    factor, uneven = divmod(terms[mono], atom.den.const)
    rest = _mod(atom.num, atom.den) * factor
    if uneven or not rest.terms or any(terms.get(m) != c for m, c in rest.terms):
        return None
    used = {mono, *(m for m, _ in rest.terms)}
    left = sorted(((m, c) for m, c in terms.items() if m not in used), key=order)
    return Expr(tuple(left), const - rest.const) + atom.num * factor


_MOST = 1 << 16
"""Entries of a cache. A training step of a GPT with twelve layers asks for fewer than a hundred."""
_QUOTIENTS: dict[tuple[Expr, Expr], Expr] = {}
"""By dividend and divisor."""
_REMAINDERS: dict[tuple[Expr, Expr], Expr] = {}
"""By dividend and divisor."""


def _floordiv(num: Expr, den: Expr) -> Expr:
    if not den.terms:
        if den.const == 1:
            return num
        if den.const < 0:
            return _floordiv(-num, -den)
        if not num.terms:
            return Expr((), num.const // den.const)
    found = _QUOTIENTS.get((num, den))
    if found is None:
        found = remember(_QUOTIENTS, (num, den), _divide(num, den), _MOST)
    return found


def _divide(num: Expr, den: Expr) -> Expr:
    quotient, rest = divided(num, den)
    if rest.nonnegative() and rest.below(den):
        return quotient
    if den.is_int:
        common = den.const
        for _, coef in rest.terms:
            common = gcd(common, coef)
        if common > 1:
            rest = Expr(tuple((m, c // common) for m, c in rest.terms), rest.const // common)
            return quotient + _floordiv(rest, Expr((), den.const // common))
    for mono, coef in rest.terms:
        if coef == 1 and len(mono) == 1 and isinstance(mono[0], Div):  # a + b // c is (a * c + b) // c
            inner = mono[0]
            return quotient + _floordiv((rest - as_expr_atom(inner)) * inner.den + inner.num, inner.den * den)
    return quotient + as_expr_atom(Div(rest, den))


def _mod(num: Expr, den: Expr) -> Expr:
    if not den.terms:
        if den.const == 1:
            return _ZERO
        if den.const < 0:
            return -_mod(-num, -den)
        if not num.terms:
            return Expr((), num.const % den.const)
    found = _REMAINDERS.get((num, den))
    if found is None:
        found = remember(_REMAINDERS, (num, den), _remainder(num, den), _MOST)
    return found


def _remainder(num: Expr, den: Expr) -> Expr:
    _, rest = divided(num, den)
    if rest.nonnegative() and rest.below(den):
        return rest
    if den.is_int:
        common = den.const
        for _, coef in rest.terms:
            common = gcd(common, coef)
        common = gcd(common, rest.const) if rest.const else common
        if common > 1:
            small = Expr(tuple((m, c // common) for m, c in rest.terms), rest.const // common)
            return _mod(small, Expr((), den.const // common)) * common
    for mono, coef in rest.terms:
        (atom, *more) = mono
        if isinstance(atom, Mod) and not more and divided(atom.den, den)[1] == 0:
            return _mod(rest + (atom.num - as_expr_atom(atom)) * coef, den)  # (k*(e % (n*d)) + f) % d is (k*e + f) % d
    return as_expr_atom(Mod(rest, den))


def as_expr_atom(atom: Div | Mod) -> Expr:
    """A division or remainder atom as an expression, without another attempt to simplify it."""
    return Expr((((atom,), 1),), 0)


def _atoms_of(atom: Atom) -> frozenset[Atom]:
    if isinstance(atom, Div | Mod):
        return atom.num.atoms() | atom.den.atoms() | {atom}
    return frozenset((atom,))


def _substitute_atom(atom: Atom, mapping: Mapping[Atom, ExprLike]) -> Expr:
    if atom in mapping:
        return as_expr(mapping[atom])
    if isinstance(atom, Div):
        return atom.num.substitute(mapping) // atom.den.substitute(mapping)
    if isinstance(atom, Mod):
        return atom.num.substitute(mapping) % atom.den.substitute(mapping)
    return as_expr(atom)


def _evaluate_atom(atom: Atom, values: Mapping[str, Any]) -> Any:
    if not isinstance(atom, Div | Mod):
        return values[atom.name]
    num, den = atom.num.evaluate(values), atom.den.evaluate(values)
    if isinstance(den, int) and den == 0 and not isinstance(num, int):
        den = 1  # of places along an axis without elements nothing is read: a mask has seen to that
    return num // den if isinstance(atom, Div) else num % den
