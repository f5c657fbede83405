"""Finds how the axes of two nests correspond, from the buffer elements that both touch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd

from lamina.ir.index import Atom, Axis, Div, Expr, Loaded, Mod, as_expr, prod

__all__ = ["Alignment", "align", "bare_axis", "disjoint", "radix", "rolled"]

IndexPair = tuple[tuple[Expr, ...], tuple[Expr, ...]]


@dataclass(frozen=True, slots=True)
class Alignment:
    """A common iteration space: its axes, and what each nest's own axes are in it."""

    axes: tuple[Axis, ...]
    left: dict[Atom, Expr | int]
    right: dict[Atom, Expr | int]
    bound: int


def bare_axis(expr: Expr) -> Axis | None:
    """The axis, when the expression is exactly one axis."""
    if expr.const == 0 and len(expr.terms) == 1:
        (mono, coef) = expr.terms[0]
        if coef == 1 and len(mono) == 1 and isinstance(mono[0], Axis):
            return mono[0]
    return None


@dataclass(frozen=True, slots=True)
class Rolled:
    """``(places + shift) % extent``: the row-major number of axes of so many points, and what varies over none."""

    places: Expr
    shift: Expr
    extent: Expr


def rolled(expr: Expr) -> Rolled | None:
    """The parts of an expression that goes once around an end, and of no other.

    What is loaded is no shift: two nests may load different values by one name.
    """
    if expr.const or len(expr.terms) != 1 or any(isinstance(a, Loaded) for a in expr.atoms()):
        return None
    ((mono, factor),) = expr.terms
    if factor != 1 or len(mono) != 1 or not isinstance(mono[0], Mod):
        return None
    shift = as_expr(mono[0].num.const)
    for atoms, times in mono[0].num.terms:
        term = prod(as_expr(a) for a in atoms) * times
        shift = shift if term.axes() else shift + term
    places, extent = mono[0].num - shift, mono[0].den
    parts = radix(places)
    return Rolled(places, shift, extent) if parts and prod(a.extent for a in parts) == extent else None


def disjoint(left: Sequence[Expr], right: Sequence[Expr]) -> bool:
    """Whether two indices provably never name the same element.

    They are slices side by side along some dimension, or places that take turns along it.
    """
    for e, f in zip(left, right, strict=True):
        if _take_turns(e, f):
            return True
        lower, upper = (e, f) if e.const <= f.const else (f, e)
        axis, other = bare_axis(lower - lower.const), bare_axis(upper - upper.const)
        if axis is not None and other is not None and (as_expr(upper.const - lower.const) - axis.extent).nonnegative():
            return True
    return False


def _take_turns(e: Expr, f: Expr) -> bool:
    """Whether all that is added to the constants of two places is a multiple of what the constants do not differ by."""
    step = gcd(*(coef for _, coef in (*e.terms, *f.terms)))
    return e.const != f.const if step == 0 else (e.const - f.const) % step != 0


class _Binder:
    """Collects correspondences axis <-> group of axes, and refuses contradictions."""

    def __init__(self) -> None:
        self.left: dict[Axis, tuple[Axis, ...]] = {}
        self.right: dict[Axis, tuple[Axis, ...]] = {}

    def bind(self, left: tuple[Axis, ...], right: tuple[Axis, ...]) -> bool:
        for side, mine, theirs in ((self.left, left, right), (self.right, right, left)):
            for axis in mine:
                if side.get(axis, theirs) != theirs:
                    return False
        if prod(a.extent for a in left) != prod(a.extent for a in right):
            return False
        for axis in left:
            self.left[axis] = right
        for axis in right:
            self.right[axis] = left
        return True

    def copy(self) -> _Binder:
        made = _Binder()
        made.left, made.right = dict(self.left), dict(self.right)
        return made


def align(
    left_axes: Sequence[Axis],
    right_axes: Sequence[Axis],
    required: Iterable[IndexPair],
    hints: Iterable[IndexPair],
    by_position: bool = False,
) -> Alignment | None:
    """A space in which every required pair of indices is the same element, or ``None``.

    A pair holds the left nest's and the right nest's index of one buffer. ``hints`` are followed where they
    do not contradict, whatever constant lies between their indices (slices of one buffer). Axes of one side that
    correspond to nothing stay as they are; ``None`` when both sides have such axes (the nests would only share part of
    their loops). ``by_position`` lets leftover axes of equal extent correspond in order.
    """
    binder = _Binder()
    pairs = list(required)
    for pair in pairs:
        if not _unify(binder, *pair):
            return None
    for pair in hints:
        trial = binder.copy()
        if _unify(trial, *(tuple([e - e.const for e in side]) for side in pair)):
            binder = trial
    left_free = [a for a in left_axes if a not in binder.left]
    right_free = [a for a in right_axes if a not in binder.right]
    if by_position and left_free and [a.extent for a in left_free] == [a.extent for a in right_free]:
        for a, b in zip(left_free, right_free, strict=True):
            binder.bind((a,), (b,))
        left_free = right_free = []
    if left_free and right_free:
        return None
    found = _space(binder, left_axes, right_axes)
    for mine, theirs in pairs:
        if any(a.substitute(found.left) != b.substitute(found.right) for a, b in zip(mine, theirs, strict=True)):
            return None
    return found


def _space(binder: _Binder, left_axes: Sequence[Axis], right_axes: Sequence[Axis]) -> Alignment:
    """Name the axes of the common space and say what each side's axes are in it."""
    taken = {a.name for a in left_axes}
    names: dict[Axis, Axis] = {}

    def fresh(axis: Axis) -> Axis:
        if axis not in names:
            k = len(taken)
            while f"i{k}" in taken:
                k += 1
            names[axis] = Axis(f"i{k}", axis.extent)
            taken.add(f"i{k}")
        return names[axis]

    left: dict[Atom, Expr | int] = {}
    right: dict[Atom, Expr | int] = {}
    left_order: list[Axis] = []
    for axis in left_axes:
        group = binder.left.get(axis, ())
        if len(group) > 1 and len(binder.right[group[0]]) == 1:
            parts = [fresh(a) for a in group]
            left[axis] = _mixed(parts)
            left_order += parts
        else:
            left_order.append(axis)
    right_order: list[Axis] = []
    for axis in right_axes:
        group = binder.right.get(axis, ())
        if not group:
            right[axis] = as_expr(fresh(axis))
            right_order.append(fresh(axis))
        elif len(group) == 1 and len(binder.left[group[0]]) == 1:
            right[axis] = as_expr(group[0])
            right_order.append(group[0])
        elif len(group) > 1:
            right[axis] = _mixed(list(group))
            right_order += group
        else:
            right[axis] = as_expr(fresh(axis))
            right_order.append(fresh(axis))
    first, second = (left_order, right_order) if len(left_order) >= len(right_order) else (right_order, left_order)
    axes = tuple(dict.fromkeys([*first, *second]))
    return Alignment(axes, left, right, len(binder.left))


def _mixed(parts: Sequence[Axis]) -> Expr:
    """The row-major number of a position in ``parts``."""
    total = as_expr(0)
    for axis in parts:
        total = total * axis.extent + as_expr(axis)
    return total


def _unify(binder: _Binder, left: tuple[Expr, ...], right: tuple[Expr, ...]) -> bool:
    """Bind axes so that the two indices agree; false when they cannot."""
    unravel_left: dict[Axis, list[tuple[Axis, Expr]]] = {}
    unravel_right: dict[Axis, list[tuple[Axis, Expr]]] = {}
    for e, f in zip(left, right, strict=True):
        if not e.terms and not f.terms:
            if e is not f and e != f:
                return False
            continue
        if e.const != f.const:
            return False
        e, f = e - e.const, f - f.const
        a, b = bare_axis(e), bare_axis(f)
        if a is not None and b is not None:
            if not binder.bind((a,), (b,)):
                return False
        elif a is not None:
            if not _one_to_many(binder, a, f, unravel_right, flip=False):
                return False
        elif b is not None:
            if not _one_to_many(binder, b, e, unravel_left, flip=True):
                return False
        elif (same := _same_map(e, f)) is not None:
            if not binder.bind((same[0],), (same[1],)):
                return False
        elif not (_rolled_alike(binder, e, f) or _step_by_step(binder, e, f)):
            return False
    return _close(binder, unravel_right, flip=False) and _close(binder, unravel_left, flip=True)


def _rolled_alike(binder: _Binder, left: Expr, right: Expr) -> bool:
    """Bind the axes of two places that go around one end by one shift."""
    mine, theirs = rolled(left), rolled(right)
    if mine is None or theirs is None or (mine.shift, mine.extent) != (theirs.shift, theirs.extent):
        return False
    one, other = radix(mine.places), radix(theirs.places)
    return one is not None and other is not None and 1 in (len(one), len(other)) and binder.bind(one, other)


def _step_by_step(binder: _Binder, left: Expr, right: Expr) -> bool:
    """Bind the axes of two sums that have the same steps."""
    mine, theirs = _steps(left), _steps(right)
    if mine is None or theirs is None or mine.keys() != theirs.keys():
        return False
    return all(binder.bind((axis,), (theirs[step],)) for step, axis in mine.items())


def _one_to_many(
    binder: _Binder, axis: Axis, expr: Expr, unravel: dict[Axis, list[tuple[Axis, Expr]]], flip: bool
) -> bool:
    parts = radix(expr)
    if parts is not None:
        return binder.bind(parts, (axis,)) if flip else binder.bind((axis,), parts)
    inside = [a for a in expr.atoms() if isinstance(a, Axis)]
    if len(inside) == 1 and any(isinstance(a, Div | Mod) for a in expr.atoms()):
        unravel.setdefault(inside[0], []).append((axis, expr))
        return True
    return False


def _close(binder: _Binder, unravel: dict[Axis, list[tuple[Axis, Expr]]], flip: bool) -> bool:
    """``n // E`` and ``n % E`` for axes of extents (.., E): the axis ``n`` is all of them in row-major order."""
    for axis, parts in unravel.items():
        total = as_expr(0)
        for part, expr in parts:
            total = total * part.extent + expr
        if total != as_expr(axis) or prod(p.extent for p, _ in parts) != axis.extent:
            return False
        group = tuple(p for p, _ in parts)
        if not (binder.bind((axis,), group) if flip else binder.bind(group, (axis,))):
            return False
    return True


def _same_map(left: Expr, right: Expr) -> tuple[Axis, Axis] | None:
    """The axes of two places that are one map of one axis each, as two readers of one roll have them."""
    if any(isinstance(atom, Loaded) for atom in left.atoms() | right.atoms()):
        return None
    mine, theirs = ([a for a in e.atoms() if isinstance(a, Axis)] for e in (left, right))
    if len(mine) != 1 or len(theirs) != 1 or mine[0].extent != theirs[0].extent:
        return None
    return (mine[0], theirs[0]) if left.substitute({mine[0]: as_expr(theirs[0])}) == right else None


def _steps(expr: Expr) -> dict[Expr, Axis] | None:
    """The axes of a sum of axes by their factors; ``None`` where it is more, or two axes have one factor."""
    found: dict[Expr, Axis] = {}
    for atom in expr.atoms():
        if isinstance(atom, Loaded):
            return None
        if isinstance(atom, Axis):
            factor = expr.coefficient(atom)
            if factor is None or factor in found or factor.axes():
                return None
            found[factor] = atom
    return found


def radix(expr: Expr) -> tuple[Axis, ...] | None:
    """The axes, outermost first, of which the expression is the row-major number; ``None`` if it is not one."""
    if expr.const:
        return None
    axes: dict[Axis, Expr] = {}
    for mono, coef in expr.terms:
        inside = [a for a in mono if isinstance(a, Axis)]
        if len(inside) != 1 or any(isinstance(a, Div | Mod) for a in mono):
            return None
        rest = list(mono)
        rest.remove(inside[0])
        factor = prod(as_expr(a) for a in rest if not isinstance(a, Div | Mod)) * coef
        axes[inside[0]] = axes[inside[0]] + factor if inside[0] in axes else factor
    order: list[Axis] = []
    stride = as_expr(1)
    while axes:
        found = next((a for a, s in axes.items() if s == stride), None)
        if found is None:
            return None
        order.append(found)
        stride = stride * found.extent
        del axes[found]
    return tuple(reversed(order))
