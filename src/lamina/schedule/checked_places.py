"""Places in tables that are read again and again: wrapped and checked once, and kept in 32 bits.

A gather whose indices vary over few of a nest's axes, as a relative position bias added to the scores of every head,
would wrap and check each index at every point. A nest of its own, over the axes of the indices alone, does it once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lamina.base.decision import Decision
from lamina.ir.access import writes
from lamina.ir.index import Axis, Expr, Loaded, as_expr, prod
from lamina.ir.loops import (
    Buffer,
    Check,
    Compute,
    Constant,
    Equation,
    Index,
    Load,
    Nest,
    Step,
    Store,
    axes_of_values,
    defined,
    operands,
)

__all__ = ["check_places_once"]

_LEAST_REUSE = 4
"""Points of the nest for each index below which memory for the indices gains nothing."""
_LEAST_POINTS = 1 << 14
"""Points of a nest below which one more nest costs more than it gains."""


def check_places_once(
    steps: Sequence[Step], buffers: Mapping[str, Buffer]
) -> tuple[list[Step], tuple[Buffer, ...], tuple[Decision, ...]]:
    """``steps`` with such indices computed ahead, the buffers that hold them, and what was decided."""
    result: list[Step] = []
    made: list[Buffer] = []
    decisions: list[Decision] = []
    for step in steps:
        if isinstance(step, Nest) and all(buffers[b].device == "cpu" for b in writes(step)):
            for name, bound in _places(step).items():
                found = _ahead(step, name, bound, buffers, f"{step.name}_place{len(made)}")
                if found is None:
                    continue
                ahead, step, buffer = found
                result.append(ahead)
                made.append(buffer)
                decisions.append(Decision("places", (step.name, name), True, "checked once for many points"))
        result.append(step)
    return result, tuple(made), tuple(decisions)


def _places(nest: Nest) -> dict[str, Expr]:
    """Values that are indices and nothing else, each with its bound."""
    found: dict[str, Expr] = {}
    other: set[str] = set()
    for eqn in nest.body:
        used = list(operands(eqn))
        whole = [(a, e) for e in _indices(eqn) for a in e.atoms() if isinstance(a, Loaded) and e == as_expr(a)]
        for atom, _ in whole:
            found[atom.name] = atom.bound
            if atom.name in used:  # several dimensions may have one index
                used.remove(atom.name)
        other.update(used)
    return {name: bound for name, bound in found.items() if name not in other}


def _indices(eqn: Equation) -> tuple[Expr, ...]:
    return eqn.index if isinstance(eqn, Load | Store) else ()


def _ahead(
    nest: Nest, name: str, bound: Expr, buffers: Mapping[str, Buffer], label: str
) -> tuple[Nest, Nest, Buffer] | None:
    """A nest that computes the index ``name``, the rest of ``nest``, and the memory between them, if worth it."""
    varies = axes_of_values(nest)
    axes = tuple(a for a in nest.axes if a.name in varies[name])
    points, few = prod(a.extent for a in nest.axes), prod(a.extent for a in axes)
    if not (bound.is_int and bound.const < 2**31 and points.is_int and few.is_int):
        return None
    if points.const < _LEAST_POINTS or points.const < _LEAST_REUSE * few.const:
        return None
    cone = _cone(nest, name)
    if not cone or any(isinstance(e, Load) and e.buffer in writes(nest) for e in cone):
        return None
    inside = {n for e in cone for n in defined(e)}
    checks = [e for e in nest.body if isinstance(e, Check) and e.cond in inside]
    before = nest.body[: min(nest.body.index(c) for c in checks)] if checks else ()
    if not checks or any(isinstance(e, Check) for e in before):
        return None  # errors come in their order
    return _parted(nest, name, axes, cone, checks, label)


def _parted(
    nest: Nest, name: str, axes: tuple[Axis, ...], cone: list[Equation], checks: list[Check], label: str
) -> tuple[Nest, Nest, Buffer]:
    origin = checks[0].origin
    at = tuple(as_expr(a) for a in axes)
    first = [e for e in nest.body if e in cone or e in checks]
    narrow = Compute(f"{name}_32", "cast", (name,), "int32", origin)
    ahead = Nest(label, axes, (*first, narrow, Store(label, at, f"{name}_32", "set", None, origin)))
    rest: list[Equation] = []
    for eqn in nest.body:
        if name in defined(eqn):
            rest.append(Load(name, label, at, "int32", None, 0, origin))
        elif eqn not in checks:
            rest.append(eqn)
    strides, step = list[Expr](), as_expr(1)
    for axis in reversed(axes):
        strides.insert(0, step)
        step = step * axis.extent
    buffer = Buffer(label, "int32", tuple(a.extent for a in axes), tuple(strides))
    return ahead, replace(nest, body=_live(rest)), buffer


def _cone(nest: Nest, name: str) -> list[Equation]:
    """What the value depends on, in order; nothing where that is more than loads and plain operations on them."""
    wanted = {name}
    cone: list[Equation] = []
    for eqn in reversed(nest.body):
        if wanted.isdisjoint(defined(eqn)):
            continue
        indirect = any(isinstance(a, Loaded) for e in _indices(eqn) for a in e.atoms())
        if indirect or not isinstance(eqn, Load | Constant | Compute | Index):
            return []
        cone.insert(0, eqn)
        wanted.update(operands(eqn))
    return cone if any(isinstance(e, Load) for e in cone) else []


def _live(body: Sequence[Equation]) -> tuple[Equation, ...]:
    """The equations that a store or check needs."""
    wanted: set[str] = set()
    kept: list[Equation] = []
    for eqn in reversed(body):
        if isinstance(eqn, Store | Check) or not wanted.isdisjoint(defined(eqn)):
            wanted.update(operands(eqn))
            kept.insert(0, eqn)
    return tuple(kept)
