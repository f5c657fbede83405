"""Hoisting: values that vary over few axes of a nest are computed once, in a nest of their own before it.

Fusion puts what is made of small operands into the loops of large ones: a table gathered by places and added to the
scores of every window, a filter's weights made of parameters. Inside of loops that it does not vary over, such a value
would be computed again at each point. A nest of its own, over the axes of the value alone, makes it once. A value that
is a place in another buffer is checked there and kept in 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lamina.base.decision import Decision
from lamina.ir.access import writes
from lamina.ir.index import Axis, Expr, Loaded, as_expr, prod
from lamina.ir.loops import (
    Buffer,
    Check,
    Compute,
    Equation,
    Load,
    Nest,
    Step,
    Store,
    axes_of,
    axes_of_values,
    defined,
    operands,
)
from lamina.ir.use_def import UseDef
from lamina.schedule import reasons
from lamina.schedule.hoisting_cost import Cost, places_of
from lamina.schedule.nest_parts import LEAST_POINTS, cone_of, dense_buffer, is_free, live_equations

__all__ = ["hoist_values"]

_LEAST_REUSE = 4
"""Points of the nest for each value below which memory for the values gains nothing."""
_GAIN = 1.5
"""How many times as long as reading a value its computation must take."""
_LEAST_PRICE = 8.0
"""Instructions of a value, per vector, below which it is computed where it is wanted."""
_LEAST_SAVED = 8000.0
"""Instructions in all for which one more nest is made."""


def hoist_values(
    steps: Sequence[Step], buffers: Mapping[str, Buffer]
) -> tuple[list[Step], tuple[Buffer, ...], tuple[Decision, ...]]:
    """``steps`` with such values computed ahead, the buffers that hold them, and what was decided."""
    work = _Work(dict(buffers))
    result: list[Step] = []
    for step in steps:
        on_cpu = isinstance(step, Nest) and all(buffers[b].on_cpu for b in writes(step))
        result += work.parted(step) if on_cpu and isinstance(step, Nest) else [step]
    return result, tuple(work.made), tuple(work.decisions)


@dataclass(frozen=True, slots=True)
class _Found:
    """What is worth a nest over ``axes``, the fast one last: values, and stores that no other axis changes."""

    axes: tuple[Axis, ...]
    names: tuple[str, ...]
    stores: tuple[Store, ...]


class _Work:
    """The buffers that are known and those that were made, and what was decided."""

    def __init__(self, buffers: dict[str, Buffer]) -> None:
        self.buffers = buffers
        self.made: list[Buffer] = []
        self.decisions: list[Decision] = []
        self.nests = 0

    def parted(self, nest: Nest) -> list[Nest]:
        """The nests ahead of ``nest``, each parted in its turn, and what is left of it."""
        result: list[Nest] = []
        while (found := _worth_it(nest, self.buffers)) is not None:
            ahead, nest = self.split(nest, found)
            result += self.parted(ahead)
        return [*result, nest]

    def split(self, nest: Nest, found: _Found) -> tuple[Nest, Nest]:
        """A nest that makes the values and the stores that were found, and the rest of ``nest``, which loads them."""
        axes, names = found.axes, found.names
        cone = cone_of(nest, [*names, *(n for e in found.stores for n in operands(e))])
        inside = {n for e in cone for n in defined(e)}
        checks = [e for e in nest.body if isinstance(e, Check) and e.cond in inside]
        first = [e for e in nest.body if e in cone or e in checks or e in found.stores]
        at, places = tuple(as_expr(a) for a in axes), _narrow_places(nest)
        loads: dict[str, Load] = {}
        definitions = UseDef(cone)
        for name in names:
            made = definitions.definition(name)
            assert not isinstance(made, Store | Check)
            label, value, dtype = f"{nest.name}_ahead{len(self.made)}", name, made.dtype
            if name in places:
                value, dtype = f"{name}_32", "int32"
                first.append(Compute(value, "cast", (name,), dtype, made.origin))
            first.append(Store(label, at, value, "set", None, made.origin))
            loads[name] = Load(name, label, at, dtype, None, 0, made.origin)
            self.made.append(dense_buffer(label, dtype, axes))
            self.buffers[label] = self.made[-1]
            why = reasons.CHECKED_AHEAD if name in places else reasons.COMPUTED_AHEAD
            self.decisions.append(Decision("hoist", (nest.name, name), True, why()))
        for eqn in found.stores:
            self.decisions.append(Decision("hoist", (nest.name, eqn.buffer), True, reasons.STORED_AHEAD()))
        gone = [*checks, *found.stores]
        rest = [next((loads[n] for n in defined(e) if n in loads), e) for e in nest.body if e not in gone]
        self.nests += 1
        ahead = Nest(f"{nest.name}_first{self.nests}", axes, tuple(first))
        return ahead, replace(nest, body=live_equations(rest))


def _worth_it(nest: Nest, buffers: Mapping[str, Buffer]) -> _Found | None:
    """Values and stores worth a nest of their own, those of the axes with the most points."""
    if len(nest.axes) < 2 or not all(a.extent.is_int for a in nest.axes):
        return None
    if prod(a.extent for a in nest.axes).const < LEAST_POINTS:
        return None
    varies = axes_of_values(nest)
    cost = Cost(nest, buffers, varies)
    stores = [e for e in nest.body if isinstance(e, Store) and is_free(nest, e, buffers)]
    sets = {varies[name] for name in _wanted_elsewhere(nest, varies)} | {axes_of(e, varies) for e in stores}
    for axes in sorted(sets, key=lambda s: (-cost.points(s), sorted(s))):
        if not axes or cost.runs(axes) < _LEAST_REUSE * cost.points(axes):
            continue
        names = tuple(n for n in _wanted_elsewhere(nest, varies) if varies[n] == axes and _pays(nest, n, axes, cost))
        moved = tuple(e for e in stores if axes_of(e, varies) == axes and _pays_once(nest, e, axes, cost))
        if names or moved:
            return _Found(tuple(cost.axis[a] for a in cost.order if a in axes), names, moved)
    return None


def _pays(nest: Nest, name: str, axes: frozenset[str], cost: Cost) -> bool:
    """Whether the value takes longer to compute at each point than to read."""
    price = _price(nest, [name], axes, cost)
    read = cost.read(axes, _held(nest, name))
    saved = (price - read) * cost.vectors(axes)
    return price >= _LEAST_PRICE and price >= _GAIN * read and saved >= _LEAST_SAVED


def _pays_once(nest: Nest, store: Store, axes: frozenset[str], cost: Cost) -> bool:
    """Whether it takes long to store the same again and again."""
    price = _price(nest, operands(store), axes, cost) + cost.price(store)
    return price > cost.price(store) and price * cost.vectors(axes) >= _LEAST_SAVED


def _price(nest: Nest, names: Sequence[str], axes: frozenset[str], cost: Cost) -> float:
    """Instructions for a vector of the values; 0 where they cannot be computed ahead of the nest."""
    cone = cone_of(nest, names)
    if not cone or not _in_order(nest, cone) or {e.buffer for e in cone if isinstance(e, Load)} & writes(nest):
        return 0.0
    inside = {n for e in cone for n in defined(e)}
    checks = [e for e in nest.body if isinstance(e, Check) and e.cond in inside]
    return sum(cost.share(e, axes, _LEAST_REUSE) for e in (*cone, *checks))


def _held(nest: Nest, name: str) -> str:
    """The dtype that the value is kept in."""
    if name in _narrow_places(nest):
        return "int32"
    return UseDef(nest.body).dtypes[name]


def _in_order(nest: Nest, cone: Sequence[Equation]) -> bool:
    """Whether the checks of what ``cone`` computes are the first of the nest's: errors come in their order."""
    inside = {n for e in cone for n in defined(e)}
    moved = [e.cond in inside for e in nest.body if isinstance(e, Check)]
    return moved == sorted(moved, reverse=True)


def _wanted_elsewhere(nest: Nest, varies: Mapping[str, frozenset[str]]) -> list[str]:
    """Values that equations use which run over more axes than they do."""
    found: dict[str, None] = {}
    for eqn in nest.body:
        over = axes_of(eqn, varies)
        for name in operands(eqn):
            if not over <= varies[name]:
                found[name] = None
    return list(found)


def _narrow_places(nest: Nest) -> set[str]:
    """Values that are places of 32 bits in a dimension and nothing else."""
    found: dict[str, Expr] = {}
    other: set[str] = set()
    for eqn in nest.body:
        used = list(operands(eqn))
        for atom in _whole_places(eqn):
            found[atom.name] = atom.bound
            if atom.name in used:  # several dimensions may have one place
                used.remove(atom.name)
        other.update(used)
    return {n for n, bound in found.items() if n not in other and bound.is_int and bound.const < 2**31}


def _whole_places(eqn: Equation) -> Iterator[Loaded]:
    for expr in places_of(eqn):
        for atom in expr.atoms():
            if isinstance(atom, Loaded) and expr == as_expr(atom):
                yield atom
