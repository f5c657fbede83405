"""Loop distribution: one nest becomes two, where what comes after a reduction had better have loops of its own.

Costly functions of what rows are reduced to are computed for many rows at once (``row_functions``), and what is stored
in another order than the reduction reads is computed in tiles (``memory_orders``). What the first nest leaves to the
second is kept in memory. Before either, what a reduction reads in an order that does not suit it is copied
(``copied_operands``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lamina.base.decision import Decision
from lamina.ir.access import writes
from lamina.ir.index import as_expr, prod
from lamina.ir.loops import Buffer, Equation, Load, Nest, Reduce, Scan, Step, Store, axes_of, axes_of_values
from lamina.ir.use_def import UseDef
from lamina.schedule import reasons
from lamina.schedule.copied_operands import copy_operands
from lamina.schedule.memory_orders import stores_across_reads
from lamina.schedule.nest_parts import LEAST_POINTS, Late, dense_buffer, live_equations
from lamina.schedule.row_functions import functions_of_rows

__all__ = ["distribute"]

_WAYS = (
    (stores_across_reads, reasons.STORED_ACROSS_READS),
    (functions_of_rows, reasons.FUNCTIONS_OF_ROWS),
)
"""What is moved to a second nest, and why. The first that a nest has: another nest is another trip through memory."""


def distribute(
    steps: Sequence[Step], buffers: Mapping[str, Buffer]
) -> tuple[list[Step], tuple[Buffer, ...], tuple[Decision, ...]]:
    """``steps`` with nests for CPUs parted in such ways, the buffers between them, and what was decided."""
    known, made = dict(buffers), list[Buffer]()
    result, decisions = list[Step](), list[Decision]()
    for step in steps:
        if not isinstance(step, Nest) or not _may_be_parted(step, known):
            result.append(step)
            continue
        (*copies, nest), why = copy_operands(step, known, made)
        if copies:
            decisions.append(Decision("distribute", (step.name,), True, why))
        known.update((b.name, b) for b in made)
        parts = [nest]
        for find, reason in _WAYS:
            if (late := find(nest, known)) is not None:
                parts = _split(nest, late, made)
                decisions.append(Decision("distribute", (step.name,), True, reason()))
                break
        result += [*copies, *parts]
    return result, tuple(made), tuple(decisions)


def _may_be_parted(nest: Nest, buffers: Mapping[str, Buffer]) -> bool:
    """Whether the nest reduces, on a CPU, over known sizes that are worth it, and scans nothing."""
    if any(not buffers[b].on_cpu for b in writes(nest)):
        return False
    if not any(isinstance(e, Reduce) for e in nest.body) or any(isinstance(e, Scan) for e in nest.body):
        return False
    return all(a.extent.is_int for a in nest.axes) and prod(a.extent for a in nest.axes).const >= LEAST_POINTS


def _split(nest: Nest, late: Late, made: list[Buffer]) -> list[Nest]:
    """The nest without the late stores, with stores of what they need, and these stores with what they depend on."""
    definitions, varies = UseDef(nest.body), axes_of_values(nest)
    stores, loads = list[Equation](), list[Equation]()
    for name in late.needed:
        axes = [a for a in nest.axes if a.name in varies[name]]
        at = tuple(as_expr(a) for a in axes)
        label, dtype, origin = (
            f"{nest.name}_part{len(made)}",
            definitions.dtypes[name],
            definitions.definition(name).origin,
        )
        made.append(dense_buffer(label, dtype, axes))
        stores.append(Store(label, at, name, "set", None, origin))
        loads.append(Load(name, label, at, dtype, None, 0, origin))
    body = nest.body
    goals = [p for p, e in enumerate(body) if isinstance(e, Store) and e in late.stores]
    second = [*loads, *(body[p] for p in definitions.backward_slice(goals, late.needed))]
    used = {name for e in second for name in axes_of(e, varies)}
    rest = [e for e in body if not isinstance(e, Store) or e not in late.stores]
    return [
        replace(nest, body=live_equations([*rest, *stores])),
        Nest(f"{nest.name}_late", tuple(a for a in nest.axes if a.name in used), tuple(second)),
    ]
