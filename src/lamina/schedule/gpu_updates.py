"""Updates of single numbers beside large tensors, taken out of the nests that read them.

An optimizer's kernel reads the step number, and writes it back increased. Programs that share the parameter's points
would overwrite the number that others have yet to read, so that one program would have to do all of them. A nest of
its own, run afterwards, leaves the large one to every program.
"""

from __future__ import annotations

from lamina.base.decision import Decision
from lamina.ir.access import reads
from lamina.ir.loops import Check, Equation, Index, Load, Nest, Random, Reduce, Scan, Store
from lamina.ir.use_def import UseDef
from lamina.schedule import work_reasons

__all__ = ["updates_apart"]


def updates_apart(nest: Nest, decisions: list[Decision]) -> list[Nest]:
    """The nest without updates of buffers that it reads at fewer points than it has, and a nest that makes them."""
    if any(isinstance(e, Reduce | Scan | Check) for e in nest.body):
        return [nest]
    loaded = {e.buffer for e in nest.body if isinstance(e, Load)}
    names = {a.name for a in nest.axes if a.extent != 1}
    late = [
        p
        for p, e in enumerate(nest.body)
        if isinstance(e, Store) and e.mode == "set" and e.buffer in loaded and names - _axes(e)
    ]
    others = [p for p, e in enumerate(nest.body) if isinstance(e, Store) and p not in late]
    if not late or not others:
        return [nest]
    first, second = _part(nest, others, ""), _part(nest, late, "_update")
    changed = {e.buffer for e in first.body if isinstance(e, Store)}
    if len(second.axes) == len(nest.axes) or reads(second) & changed:
        return [nest]
    decisions.append(Decision("cut", (nest.name, "update apart"), True, work_reasons.UPDATE_APART()))
    return [first, second]


def _axes(eqn: Equation) -> set[str]:
    if isinstance(eqn, Load | Store):
        return {a for e in eqn.index for a in e.axes()}
    if isinstance(eqn, Index):
        return set(eqn.expr.axes())
    return set(eqn.index.axes()) if isinstance(eqn, Random) else set()


def _part(nest: Nest, goals: list[int], suffix: str) -> Nest:
    """The equations that these stores need, over the axes they vary over."""
    body = tuple(nest.body[p] for p in UseDef(nest.body).backward_slice(goals))
    used = {a for e in body for a in _axes(e)}
    return Nest(f"{nest.name}{suffix}", tuple(a for a in nest.axes if a.name in used), body)
