"""Index expressions: canonical integer polynomials over axes, sizes and loaded indices.

An ``Expr`` is a sum of integer multiples of monomials; a monomial is a product of atoms. Because the form is
canonical and hash-consed, two expressions are equal exactly when they are the same object, and most
simplifications (collecting terms, ``(i // c) * c + i % c -> i``) happen while an expression is built.
Axes carry their extent, so division and remainder use the range of what they divide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any, TypeAlias

__all__ = ["Atom", "Axis", "Div", "Expr", "Loaded", "Mod", "Size", "as_expr", "ceildiv", "prod"]


@dataclass(frozen=True, slots=True)
class Size:
    """A size known only at run time, at least ``low``."""

    name: str
    low: int = 0

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop variable running over ``0 <= name < extent``."""

    name: str
    extent: Expr

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Loaded:
    """An integer that the nest computes or loads: the index of a gather or scatter. Known to be in ``[0, bound)``."""

    name: str
    bound: Expr

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Div:
    """``floor(num / den)`` with ``den > 0`` that does not simplify."""

    num: Expr
    den: Expr

    def __hash__(self) -> int:
        return self.num._hash * 3 + self.den._hash

    def __str__(self) -> str:
        return f"(({self.num}) // ({self.den}))"


@dataclass(frozen=True, slots=True)
class Mod:
    """``num - den * floor(num / den)`` with ``den > 0`` that does not simplify."""

    num: Expr
    den: Expr

    def __hash__(self) -> int:
        return self.num._hash * 5 + self.den._hash

    def __str__(self) -> str:
        return f"(({self.num}) % ({self.den}))"


Atom: TypeAlias = Size | Axis | Loaded | Div | Mod
Monomial: TypeAlias = tuple[Atom, ...]
ExprLike: TypeAlias = "Expr | int"

_interned: dict[tuple[tuple[tuple[Monomial, int], ...], int], Expr] = {}


class Expr:
    """A canonical integer expression. Immutable; build with ``as_expr`` and arithmetic."""

    __slots__ = ("_atoms", "_axes", "_bounds", "_hash", "_order", "const", "terms")
    terms: tuple[tuple[Monomial, int], ...]
    const: int
    _atoms: frozenset[Atom] | None
    _axes: frozenset[str] | None
    _hash: int
    _order: str | None
    _bounds: tuple[int | None, Expr | None] | None

    def __new__(cls, terms: tuple[tuple[Monomial, int], ...], const: int) -> Expr:
        key = (terms, const)
        found = _interned.get(key)
        if found is None:
            found = object.__new__(cls)
            set_ = object.__setattr__
            set_(found, "terms", terms)
            set_(found, "const", const)
            # Equal to its number where it is one, so hashed like it.
            set_(found, "_hash", hash(key if terms else const))
            set_(found, "_order", None)
            set_(found, "_bounds", None)
            set_(found, "_atoms", None)
            set_(found, "_axes", None)
            found = _interned.setdefault(key, found)
        return found

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("Expr is immutable")

    def __reduce__(self) -> tuple[type[Expr], tuple[object, int]]:
        return (Expr, (self.terms, self.const))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, int):
            return not self.terms and self.const == other
        return False

    # ---- arithmetic -------------------------------------------------------------------------------------------

    def __add__(self, other: ExprLike) -> Expr:
        if isinstance(other, int):
            return Expr(self.terms, self.const + other) if other else self
        if self is other:
            return self * 2
        if not other.terms:
            return Expr(self.terms, self.const + other.const) if other.const else self
        if not self.terms:
            return Expr(other.terms, self.const + other.const) if self.const else other
        total = dict(self.terms)
        for mono, coef in other.terms:
            total[mono] = total.get(mono, 0) + coef
        return _collect(total, self.const + other.const)

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return self * -1

    def __sub__(self, other: ExprLike) -> Expr:
        return self + (other * -1)

    def __rsub__(self, other: ExprLike) -> Expr:
        return (self * -1) + other

    def __mul__(self, other: ExprLike) -> Expr:
        if isinstance(other, Expr):
            if other.terms:
                if not self.terms:
                    return other * self.const
                total: dict[Monomial, int] = {}
                for m1, c1 in (*self.terms, *((((), self.const),) if self.const else ())):
                    for m2, c2 in (*other.terms, *((((), other.const),) if other.const else ())):
                        mono = _times(m1, m2)
                        total[mono] = total.get(mono, 0) + c1 * c2
                return _collect(total, total.pop((), 0))
            other = other.const
        if other == 1:
            return self
        if other == 0:
            return _ZERO
        return Expr(tuple((m, c * other) for m, c in self.terms), self.const * other)

    __rmul__ = __mul__

    def __floordiv__(self, other: ExprLike) -> Expr:
        return _floordiv(self, as_expr(other))

    def __mod__(self, other: ExprLike) -> Expr:
        return _mod(self, as_expr(other))

    # ---- questions --------------------------------------------------------------------------------------------

    @property
    def is_int(self) -> bool:
        """Whether the expression is a plain integer."""
        return not self.terms

    def __int__(self) -> int:
        if self.terms:
            raise TypeError(f"{self} is not a plain integer")
        return self.const

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
            bounds = _bounds(self)
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

    def text(self, atom: Callable[[Atom], str] = str) -> str:
        """The expression as Python (and C, when ``atom`` renders divisions) source."""
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
        if self._order is None:
            object.__setattr__(self, "_order", self.text())
        assert self._order is not None
        return self._order

    def __repr__(self) -> str:
        return f"Expr({self})"


def _Const(value: int) -> Expr:
    return Expr((), value)


_ZERO = _Const(0)


def as_expr(value: ExprLike | Size | Axis | Loaded) -> Expr:
    """An integer or an atom as an expression; an expression is returned as it is."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, int):
        return Expr((), int(value))
    return Expr((((value,), 1),), 0)


def prod(values: Iterable[ExprLike]) -> Expr:
    """Product of expressions; one when there is none."""
    total: Expr = _Const(1)
    for value in values:
        total = total * value
    return total


def ceildiv(num: ExprLike, den: ExprLike) -> Expr:
    """``ceil(num / den)`` for a positive ``den``."""
    return (as_expr(num) + den - 1) // den


_RANKS: dict[Atom, tuple[int, str]] = {}
_ORDERS: dict[Monomial, tuple[tuple[tuple[int, str], ...], bool]] = {}


def _rank(atom: Atom) -> tuple[int, str]:
    found = _RANKS.get(atom)
    if found is None:
        found = _RANKS[atom] = (0 if isinstance(atom, Size) else 1 if isinstance(atom, Axis) else 2, str(atom))
    return found


def _times(left: Monomial, right: Monomial) -> Monomial:
    if not left:
        return right
    if not right:
        return left
    return tuple(sorted(left + right, key=_rank))


def _place(mono: Monomial) -> tuple[tuple[tuple[int, str], ...], bool]:
    """Where a monomial stands among others, and whether a remainder is a factor of it."""
    found = _ORDERS.get(mono)
    if found is None:
        found = _ORDERS[mono] = (tuple(_rank(a) for a in mono), any(isinstance(a, Mod) for a in mono))
    return found


def _order(item: tuple[Monomial, int]) -> tuple[tuple[int, str], ...]:
    return _place(item[0])[0]


def _collect(total: dict[Monomial, int], const: int) -> Expr:
    terms = {m: c for m, c in total.items() if c}
    if len(terms) < 2:
        return Expr(tuple(terms.items()), const)
    for mono in terms:
        for atom in mono if _place(mono)[1] else ():
            if isinstance(atom, Mod):
                joined = _join_mod(terms, mono, atom, const)
                if joined is not None:
                    return joined
    return Expr(tuple(sorted(terms.items(), key=_order)), const)


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
    if len(scaled.terms) != 1:
        return None
    target, factor = scaled.terms[0]
    coef = terms[mono]
    if terms.get(target) != coef * factor or target == mono:
        return None
    left = {m: c for m, c in terms.items() if m not in (mono, target)}
    joined = atom.num * coef
    if rest:
        joined = joined * Expr(((tuple(rest), 1),), 0)
    return Expr(tuple(sorted(left.items(), key=_order)), const) + joined


def _split(num: Expr, den: Expr) -> tuple[Expr, Expr]:
    """``num == quotient * den + rest`` with every provably divisible term in the quotient."""
    if den.is_int:
        d = den.const
        quotient = [(m, c // d) for m, c in num.terms if c % d == 0]
        rest = [(m, c) for m, c in num.terms if c % d]
        return Expr(tuple(quotient), num.const // d), Expr(tuple(rest), num.const % d)
    if len(den.terms) != 1 or den.const:
        return _ZERO, num
    dmono, dcoef = den.terms[0]
    q: Expr = _ZERO
    r: Expr = _Const(num.const)
    for mono, coef in num.terms:
        left: list[Atom] | None = list(mono)
        for atom in dmono:
            if left is not None and atom in left:
                left.remove(atom)
            else:
                left = None
                break
        if left is not None and coef % dcoef == 0:
            q = q + (Expr(((tuple(left), coef // dcoef),), 0) if left else _Const(coef // dcoef))
        else:
            r = r + Expr(((mono, coef),), 0)
    return q, r


_QUOTIENTS: dict[tuple[Expr, Expr], Expr] = {}
_REMAINDERS: dict[tuple[Expr, Expr], Expr] = {}


def _floordiv(num: Expr, den: Expr) -> Expr:
    if not den.terms:
        if den.const == 1:
            return num
        if not num.terms:
            return _Const(num.const // den.const)
    found = _QUOTIENTS.get((num, den))
    if found is None:
        found = _QUOTIENTS[num, den] = _divide(num, den)
    return found


def _divide(num: Expr, den: Expr) -> Expr:
    quotient, rest = _split(num, den)
    if rest.nonnegative() and rest.below(den):
        return quotient
    if den.is_int:
        common = den.const
        for _, coef in rest.terms:
            common = gcd(common, coef)
        if common > 1:
            rest = Expr(tuple((m, c // common) for m, c in rest.terms), rest.const // common)
            return quotient + _floordiv(rest, _Const(den.const // common))
    if len(rest.terms) == 1 and not rest.const:
        (mono, coef) = rest.terms[0]
        if coef == 1 and len(mono) == 1 and isinstance(mono[0], Div):
            return quotient + _floordiv(mono[0].num, mono[0].den * den)
    return quotient + as_expr_atom(Div(rest, den))


def _mod(num: Expr, den: Expr) -> Expr:
    if not den.terms:
        if den.const == 1:
            return _ZERO
        if not num.terms:
            return _Const(num.const % den.const)
    found = _REMAINDERS.get((num, den))
    if found is None:
        found = _REMAINDERS[num, den] = _remainder(num, den)
    return found


def _remainder(num: Expr, den: Expr) -> Expr:
    _, rest = _split(num, den)
    if rest.nonnegative() and rest.below(den):
        return rest
    if den.is_int:
        common = den.const
        for _, coef in rest.terms:
            common = gcd(common, coef)
        common = gcd(common, rest.const) if rest.const else common
        if common > 1:
            small = Expr(tuple((m, c // common) for m, c in rest.terms), rest.const // common)
            return _mod(small, _Const(den.const // common)) * common
    if len(rest.terms) == 1 and not rest.const:
        (mono, coef) = rest.terms[0]
        if coef == 1 and len(mono) == 1 and isinstance(mono[0], Mod) and _split(mono[0].den, den)[1] == 0:
            return _mod(mono[0].num, den)
    return as_expr_atom(Mod(rest, den))


def as_expr_atom(atom: Div | Mod) -> Expr:
    """A division or remainder atom as an expression, without another attempt to simplify it."""
    return Expr((((atom,), 1),), 0)


def _atoms_of(atom: Atom) -> frozenset[Atom]:
    if isinstance(atom, Div | Mod):
        return atom.num.atoms() | atom.den.atoms() | {atom}
    return frozenset((atom,))


def _atom_bounds(atom: Atom) -> tuple[int | None, Expr | None]:
    if isinstance(atom, Size):
        return atom.low, as_expr(atom)
    if isinstance(atom, Axis):
        return 0, atom.extent - 1
    if isinstance(atom, Loaded):
        return 0, atom.bound - 1
    if isinstance(atom, Mod):
        return 0, atom.den - 1
    low, high = atom.num.bounds()
    if not atom.den.is_int:
        return (0 if low is not None and low >= 0 else None), (high if low is not None and low >= 0 else None)
    d = atom.den.const
    return (low // d if low is not None else None), (high // d if high is not None else None)


def _bounds(expr: Expr) -> tuple[int | None, Expr | None]:
    low: int | None = expr.const
    high: Expr | None = _Const(expr.const)
    for mono, coef in expr.terms:
        mono_low: int | None = 1
        mono_high: Expr | None = _Const(1)
        for atom in mono:
            a_low, a_high = _atom_bounds(atom)
            if len(mono) > 1 and (a_low is None or a_low < 0):
                mono_low, mono_high = None, None
                break
            mono_low = mono_low * a_low if mono_low is not None and a_low is not None else None
            mono_high = mono_high * a_high if mono_high is not None and a_high is not None else None
        if coef < 0:
            swapped = mono_high.const if mono_high is not None and mono_high.is_int else None
            mono_high = _Const(mono_low) if mono_low is not None else None
            mono_low = swapped
        low = low + coef * mono_low if low is not None and mono_low is not None else None
        high = high + mono_high * coef if high is not None and mono_high is not None else None
    return low, high


def _substitute_atom(atom: Atom, mapping: Mapping[Atom, ExprLike]) -> Expr:
    if atom in mapping:
        return as_expr(mapping[atom])
    if isinstance(atom, Div):
        return atom.num.substitute(mapping) // atom.den.substitute(mapping)
    if isinstance(atom, Mod):
        return atom.num.substitute(mapping) % atom.den.substitute(mapping)
    return as_expr(atom)


def _evaluate_atom(atom: Atom, values: Mapping[str, Any]) -> Any:
    if isinstance(atom, Div):
        return atom.num.evaluate(values) // atom.den.evaluate(values)
    if isinstance(atom, Mod):
        return atom.num.evaluate(values) % atom.den.evaluate(values)
    return values[atom.name]
