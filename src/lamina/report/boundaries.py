"""Why two steps of a plan are not one kernel, as the record says it."""

from __future__ import annotations

from collections.abc import Callable

from lamina.base.reasons import Reason
from lamina.ir.loops import LibraryCall
from lamina.ir.plan import PlanStep
from lamina.report.regions import Region
from lamina.schedule.boundaries import boundaries

__all__ = ["boundary_reasons"]


def boundary_reasons(region: Region) -> Callable[[PlanStep, PlanStep], Reason | None]:
    """A function that says why the second of two steps is not in the first's kernel."""
    members = _Members()
    refused: dict[tuple[str, ...], Reason] = {}
    for _, stage in region.stages:
        for decision in stage.decisions:
            if decision.kind not in ("fuse", "inline") or len(decision.subject) != 2:
                continue
            if decision.taken:
                members.join(*decision.subject)
            else:
                refused.setdefault(decision.subject, decision.reason)

    asked = {} if region.plan is None else {(b.first, b.second): b.reason for b in boundaries(region.plan)}

    def reason(first: PlanStep, second: PlanStep) -> Reason | None:
        if (first.name, second.name) in asked:
            return asked[first.name, second.name]
        for step in (second, first):
            if isinstance(step, LibraryCall):
                return step.reason if isinstance(step.reason, Reason) else Reason(step.reason) if step.reason else None
        pairs = [(a, b) for a in members.of(first) for b in members.of(second)]
        return next((refused[p] for a, b in pairs for p in ((a, b), (b, a)) if p in refused), None)

    return reason


class _Members:
    """Which nests were joined into which."""

    def __init__(self) -> None:
        self._of: dict[str, set[str]] = {}

    def join(self, first: str, second: str) -> None:
        self._of.setdefault(first, {first}).add(second)
        self._of.setdefault(second, {second}).add(first)

    def of(self, step: PlanStep) -> set[str]:
        names = {step.name, *(nest.name for nest in getattr(step, "nests", ()))}
        return names.union(*(self._of.get(name, ()) for name in names))
