"""Loop distribution: costly functions of what rows are reduced to are computed for many rows at once.

A kernel that reduces rows goes along each row in vectors, and what it makes of the row's one number (the logarithm of a
sum, the ``tanh`` of a mean) is computed for one number at a time, which for short rows takes longer than the row. Where
nothing in the row needs it, a nest of its own over the rows computes it in vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lamina.base.decision import Decision
from lamina.ir.access import writes
from lamina.ir.index import Axis, as_expr, prod
from lamina.ir.loops import (
    Buffer,
    Compute,
    Equation,
    Load,
    Nest,
    Reduce,
    Scan,
    Step,
    Store,
    axes_of,
    axes_of_values,
    defined,
    operands,
)
from lamina.ir.ops import OPS
from lamina.ir.use_def import UseDef
from lamina.schedule import reasons
from lamina.schedule.hoisting_cost import LANES, Cost
from lamina.schedule.nest_parts import cone_of, dense_buffer, is_free, live_equations

__all__ = ["distribute"]

_COSTLY = 12
"""Instructions of a function that takes much longer for one number than for an element of a vector."""
_LEAST_SAVED = 30_000
"""Instructions of such functions in all rows, about ten microseconds, for which one more nest is made."""


@dataclass(frozen=True, slots=True)
class _Late:
    """What is computed and stored after all rows, and which values of the rows it needs."""

    rows: tuple[Axis, ...]
    equations: tuple[Equation, ...]
    needed: tuple[str, ...]


def distribute(
    steps: Sequence[Step], buffers: Mapping[str, Buffer]
) -> tuple[list[Step], tuple[Buffer, ...], tuple[Decision, ...]]:
    """``steps`` with such functions in nests of their own, the buffers between, and what was decided."""
    result: list[Step] = []
    made: list[Buffer] = []
    decisions: list[Decision] = []
    for step in steps:
        late = _late(step, buffers) if isinstance(step, Nest) else None
        if late is None or not isinstance(step, Nest):
            result.append(step)
            continue
        result += _split(step, late, made)
        decisions.append(Decision("distribute", (step.name,), True, reasons.FUNCTIONS_OF_ROWS()))
    return result, tuple(made), tuple(decisions)


def _split(nest: Nest, late: _Late, made: list[Buffer]) -> list[Nest]:
    """The rows, which store what is needed, and what is computed of it afterwards."""
    at = tuple(as_expr(a) for a in late.rows)
    definitions = UseDef(nest.body)
    stores, loads = list[Equation](), list[Equation]()
    for name in late.needed:
        label, dtype, origin = (
            f"{nest.name}_row{len(made)}",
            definitions.dtypes[name],
            definitions.definition(name).origin,
        )
        made.append(dense_buffer(label, dtype, late.rows))
        stores.append(Store(label, at, name, "set", None, origin))
        loads.append(Load(name, label, at, dtype, None, 0, origin))
    rest = [e for e in nest.body if not isinstance(e, Store) or e not in late.equations]
    taken = {n for e in late.equations for n in defined(e)}
    given = {n for e in late.equations for n in operands(e)} - taken - set(late.needed)
    ahead = cone_of(nest, sorted(given))
    first = replace(nest, body=live_equations([*rest, *stores]))
    second = Nest(f"{nest.name}_rows", late.rows, (*ahead, *loads, *late.equations))
    return [first, second]


def _late(nest: Nest, buffers: Mapping[str, Buffer]) -> _Late | None:
    """What is better computed after all rows, ``None`` if nothing is.

    Rows shorter than a vector are unrolled or joined instead: their results are vectors already.
    """
    if any(buffers[b].device != "cpu" for b in writes(nest)) or not all(a.extent.is_int for a in nest.axes):
        return None
    reduced = {name for e in nest.body if isinstance(e, Reduce) for name in e.axes}
    rows = tuple(a for a in nest.axes if a.name not in reduced)
    count, length = (prod(a.extent for a in axes).const for axes in (rows, [a for a in nest.axes if a not in rows]))
    if not reduced or not rows or length < LANES or any(isinstance(e, Scan) for e in nest.body):
        return None
    equations = _after_rows(nest, reduced, buffers)
    costs = [OPS[e.op].cost for e in equations if isinstance(e, Compute)]
    needed = _needed(nest, equations)
    saved = sum(c for c in costs if c >= _COSTLY) - 2 * len(needed)  # each is stored and loaded
    if count * saved < _LEAST_SAVED or Cost(nest, buffers, axes_of_values(nest)).vector not in reduced:
        return None
    return _Late(rows, tuple(equations), needed)


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
