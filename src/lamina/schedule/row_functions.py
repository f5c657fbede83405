"""Costly functions of what rows are reduced to.

A kernel that reduces rows goes along each row in vectors, and what it makes of the row's one number (the logarithm of a
sum, the ``tanh`` of a mean) is computed for one number at a time, which for short rows takes longer than the row. Where
nothing in the row needs it, a nest of its own over the rows computes it in vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.ir.access import writes
from lamina.ir.index import prod
from lamina.ir.loops import (
    Buffer,
    Compute,
    Equation,
    Load,
    Nest,
    Reduce,
    Store,
    axes_of,
    axes_of_values,
    defined,
    operands,
)
from lamina.ir.ops import OPS
from lamina.schedule.hoisting_cost import Cost
from lamina.schedule.lanes import LANES
from lamina.schedule.nest_parts import COSTLY, Late, cone_of, is_free

__all__ = ["functions_of_rows"]

_LEAST_SAVED = 30_000
"""Instructions of such functions in all rows, about ten microseconds, for which one more nest is made."""


def functions_of_rows(nest: Nest, buffers: Mapping[str, Buffer]) -> Late | None:
    """What is better computed after all rows of a nest for a CPU, ``None`` if nothing is.

    Rows shorter than a vector are unrolled or joined instead: their results are vectors already.
    """
    reduced = {name for e in nest.body if isinstance(e, Reduce) for name in e.axes}
    rows = [a for a in nest.axes if a.name not in reduced]
    count, length = (prod(a.extent for a in axes).const for axes in (rows, [a for a in nest.axes if a not in rows]))
    if not rows or length < LANES:
        return None
    equations = _after_rows(nest, reduced, buffers)
    costs = [OPS[e.op].cost for e in equations if isinstance(e, Compute)]
    needed = _needed(nest, equations)
    saved = sum(c for c in costs if c >= COSTLY) - 2 * len(needed)  # each is stored and loaded
    if count * saved < _LEAST_SAVED or Cost(nest, buffers, axes_of_values(nest)).vector not in reduced:
        return None
    return Late(tuple(e for e in equations if isinstance(e, Store)), needed)


def _after_rows(nest: Nest, reduced: set[str], buffers: Mapping[str, Buffer]) -> list[Equation]:
    """Equations that follow from what rows are reduced to, vary from row to row only, and end in stores."""
    varies = axes_of_values(nest)
    follows: set[str] = set()
    for eqn in nest.body:
        if isinstance(eqn, Reduce) or not follows.isdisjoint(operands(eqn)):
            follows.update(defined(eqn))
    found: list[Equation] = []
    wanted_early: set[str] = set()
    for eqn in reversed(nest.body):
        late = not axes_of(eqn, varies) & reduced and not follows.isdisjoint(operands(eqn))
        if isinstance(eqn, Store):
            late = late and is_free(nest, eqn, buffers)
        else:
            late = late and isinstance(eqn, Compute) and wanted_early.isdisjoint(defined(eqn))
        if late:
            found.append(eqn)
        else:
            wanted_early.update(operands(eqn))
    computed = {n for e in found if isinstance(e, Compute) for n in defined(e)}
    return [e for e in reversed(found) if not isinstance(e, Store) or e.value in computed]


def _needed(nest: Nest, equations: Sequence[Equation]) -> tuple[str, ...]:
    """Values of rows that are kept. What is no more than loads and operations on them is computed again."""
    taken = {n for e in equations for n in defined(e)}
    given = dict.fromkeys(n for e in equations for n in operands(e) if n not in taken)
    return tuple(name for name in given if not _again(nest, name))


def _again(nest: Nest, name: str) -> bool:
    """Whether a nest of its own may compute the value too: the rows do not write to what it is made of."""
    cone = cone_of(nest, [name])
    return bool(cone) and writes(nest).isdisjoint(e.buffer for e in cone if isinstance(e, Load))
