"""Which rewrite of a graph is the first that changes its values, and of rules which application."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import GraphModule

from lamina.base.source import source_of
from lamina.blame.found import Blame
from lamina.blame.observed import Generators, Snapshot, duplicate
from lamina.blame.values import Reference, Values, first_departure
from lamina.decomp.table import decompositions
from lamina.options import Options
from lamina.record import Record
from lamina.rewrite.engine import Rewrites
from lamina.rewrite.rewriting import Rewriting

__all__ = ["GraphRun", "blamed_rewrite", "least"]

RULES = "the rules"
"""What the list of rewrites calls the engine."""


@dataclass(frozen=True, slots=True)
class GraphRun:
    """How graphs of one place are evaluated: on ``inputs``, by ``values``, told whether in double precision."""

    inputs: Sequence[Any]
    generators: Generators
    values: Callable[[GraphModule, bool], Values]


def least(most: int, wrong: Callable[[int], bool]) -> int:
    """The least number up to ``most``, which is wrong, that is wrong, by halving; 0 is right."""
    good, bad = 0, most
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if wrong(middle) else (middle, bad)
    return bad


def blamed_rewrite(
    stage: str, snapshots: Sequence[Snapshot], run: GraphRun, settings: Options, record: Record, gradients: bool
) -> Blame | None:
    """The first of the ``snapshots``, in order, whose graph gives other values than the first one's."""
    first = snapshots[0].gm
    reference = Reference.of(lambda wide: run.values(first, wide))
    before = first
    for snapshot in snapshots[1:]:
        if _text(snapshot.gm) == _text(before):
            continue
        complaint = reference.complaint(run.values(snapshot.gm, False))
        if complaint:
            blame = _at_rewrite(stage, snapshot, before, run, record, complaint)
            if snapshot.rewrite != RULES:
                return blame
            return _at_rule(blame, snapshot, before, run, reference, settings, gradients)
        before = snapshot.gm
    return None


def _text(gm: GraphModule) -> list[tuple[str, str, str, str]]:
    return [(n.name, str(n.target), str(n.args), str(n.kwargs)) for n in gm.graph.nodes]


def _at_rewrite(
    stage: str, snapshot: Snapshot, before: GraphModule, run: GraphRun, record: Record, complaint: str
) -> Blame:
    name = first_departure(before, snapshot.gm, run.inputs, run.generators)
    node = next((n for n in snapshot.gm.graph.nodes if n.name == name), None)
    place = "" if node is None else source_of(node).strip()
    decided = [d for d in record.decisions() if d.taken and d.subject and d.subject[0] == snapshot.rewrite]
    at = [d for d in decided if any(place.split(" ")[0] in str(s) for s in d.subject[1:])] if place else []
    named = tuple(at or decided)[:3]
    return Blame(stage, snapshot.graph, snapshot.rewrite, 0, (name,) if name else (), place, complaint, decisions=named)


def _at_rule(
    blame: Blame,
    snapshot: Snapshot,
    before: GraphModule,
    run: GraphRun,
    reference: Reference,
    settings: Options,
    gradients: bool,
) -> Blame:
    """The rule, and which of its applications, with which the values become others."""
    rules = _Rules(snapshot, before, settings, gradients)
    every = rules.applied(settings.fuel)[1]
    if not every.done:
        return blame

    def complaint(fuel: int) -> str:
        return reference.complaint(run.values(rules.applied(fuel)[0], False))

    if not complaint(len(every.done)):
        return blame
    count = least(len(every.done), lambda fuel: bool(complaint(fuel)))
    gm, found = rules.applied(count)
    last = found.done[-1]
    taken = [d for d in found.decisions if d.taken and d.subject[0] == last.rule]
    nth = sum(one.rule == last.rule for one in found.done)
    place = "; ".join(last.sources) or blame.place
    departed = first_departure(before, gm, run.inputs, run.generators)
    subject = (departed,) if departed else ()
    text = complaint(count)
    return replace(
        blame, step=last.rule, application=nth, subject=subject, place=place, text=text, decisions=tuple(taken[-1:])
    )


class _Rules:
    """The rules of a place, applied to copies of a graph with any fuel."""

    def __init__(self, snapshot: Snapshot, before: GraphModule, settings: Options, gradients: bool) -> None:
        self.snapshot, self.before, self.settings, self.gradients = snapshot, before, settings, gradients

    def applied(self, fuel: int) -> tuple[GraphModule, Rewrites]:
        """The graph after so many rewrites at most, and what they were."""
        record, gm = Record(), duplicate(self.before)
        options = replace(self.settings, fuel=fuel, expect_matches=())
        rewriting = Rewriting(options, record, self.snapshot.graph, dict(decompositions(options.numerics)))
        rewriting.recording = self.gradients
        gm = rewriting.on_captured(gm) if self.snapshot.place == "captured" else rewriting.on_joint(gm)
        return gm, next(_rewrites(record), Rewrites((), ()))


def _rewrites(record: Record) -> Iterator[Rewrites]:
    return (s.value for s in record.stages if isinstance(s.value, Rewrites))
