"""Predicated loads: what a nest needs only where a condition on a whole row fails is loaded under that condition.

``where(same, seen, x + residual)``, where ``same`` is known once the row of ``seen`` has been reduced, needs ``x`` and
``residual`` only in the rows that are not the same. Loaded under the opposite condition, they cost no memory traffic
elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

from lamina.ir.access import writes
from lamina.ir.loops import Compute, Equation, Load, Nest
from lamina.ir.predicated import PredicatedBranch, predicated_branches

__all__ = ["predicate_loads"]


def predicate_loads(nest: Nest) -> Nest:
    """The nest with such loads masked and moved behind their condition; the same object where there are none."""
    made = next((m for branch in predicated_branches(nest) if (m := _masked(nest, branch)) is not nest), None)
    return nest if made is None else predicate_loads(made)  # other branches may hold what was moved


def _masked(nest: Nest, branch: PredicatedBranch) -> Nest:
    stored = writes(nest)
    loads = [e for e in branch.private if isinstance(e, Load)]
    if any(e.mask is not None or e.buffer in stored for e in loads):
        return nest
    choice, mask = branch.choice, f"{branch.choice.out}_else"
    moved = {id(e) for e in branch.private}
    body: list[Equation] = []
    for eqn in nest.body:
        if id(eqn) in moved:
            continue
        if eqn is choice:
            body.append(Compute(mask, "not", (branch.condition,), "bool", choice.origin))
            body += [replace(e, mask=mask) if isinstance(e, Load) else e for e in branch.private]
        body.append(eqn)
    return Nest(nest.name, nest.axes, tuple(body))
