"""What a record says about a compiled callable, put together for people: equal things are grouped and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch.fx import GraphModule

from lamina.base.decision import Decision
from lamina.ir.loops import LibraryCall
from lamina.ir.plan import KernelCall, Plan
from lamina.ir.work import Sizes, bytes_of
from lamina.record import Record
from lamina.stats import last_plans, planned_graphs

__all__ = [
    "Advice",
    "GraphSummary",
    "Work",
    "advice",
    "graph_summaries",
    "library_work",
    "unapplied_rules",
    "user_kernels",
    "user_places",
]


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to change: what is so, at which of the user's lines ("file:line"), what to do, and how often it is."""

    places: tuple[str, ...]
    code: str
    what: str
    remedy: str
    count: int


@dataclass(frozen=True, slots=True)
class Work:
    """Kernels or library calls that are alike: how often one run of all regions has them, and where they come from.

    ``nbytes`` are read and written by all of them together, ``share`` is their part of all bytes that kernels and
    library calls move; sizes known only at run time count as they were when the graph was traced. ``places`` are the
    user's lines, with the operations.
    """

    name: str
    regions: tuple[str, ...]
    count: int
    nbytes: int
    share: float
    places: tuple[str, ...]
    how: str


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """One region: launches of kernels, library calls, bytes read and written."""

    region: str
    launches: int
    library_calls: int
    nbytes: int


def advice(record: Record) -> list[Advice]:
    """What can be changed, the most useful first: what is not compiled, then what is compiled often, then the rest."""
    places = _places_by_subject(record)
    found: dict[tuple[str, str, str], list[tuple[str, Decision]]] = {}
    for stage in record.stages:
        for decision in stage.decisions:
            if decision.remedy and not _is_unapplied(decision):
                place = _place(decision, places)
                own = _where(place) if decision.kind in _RANKS else ""
                found.setdefault((decision.code, own, decision.remedy), []).append((_where(place), decision))
    grouped = [_advised(group) for group in found.values()]
    rank = {id(a): _RANKS.get(group[0][1].kind, len(_RANKS)) for a, group in zip(grouped, found.values(), strict=True)}
    told = {a.remedy for a in grouped if a.code != "LM1202" and a.code != "LM1201"}
    kept = [a for a in grouped if a.code not in ("LM1201", "LM1202") or a.remedy not in told]
    return sorted(kept, key=lambda a: (rank[id(a)], -a.count))


def unapplied_rules(record: Record) -> list[Decision]:
    """For each rule of the user's that no graph of the callable had a place for: why, at the nearest miss of all."""
    applied = {d.subject[0] for d in record.decisions("rewrite") if d.taken and d.subject}
    found: dict[str, Decision] = {}
    for decision in record.decisions("rewrite"):
        if _is_unapplied(decision) and decision.subject[0] not in applied:
            best = found.setdefault(decision.subject[0], decision)
            if _fitted(decision) > _fitted(best):
                found[decision.subject[0]] = decision
    return list(found.values())


def _is_unapplied(decision: Decision) -> bool:
    return decision.kind == "rewrite" and "rule at" in dict(decision.facts) and not decision.taken


def _fitted(decision: Decision) -> int:
    return int(dict(decision.facts).get("nodes", 0))


def _advised(group: list[tuple[str, Decision]]) -> Advice:
    places = tuple(place for place, _ in Counter(place for place, _ in group if place).most_common())
    decision = group[0][1]
    return Advice(places, decision.code, str(decision.reason), decision.remedy, len(group))


_RANKS = {"capture": 0, "break": 0, "fallback": 1, "recompile": 2, "specialise": 3, "cut": 4, "segments": 4}
"""Kinds of decisions by how much they cost a program; all others come after them."""


def _where(place: str) -> str:
    """The file and line of a place, without the operation."""
    return place.partition(" ")[0]


def _place(decision: Decision, places: Mapping[str, str]) -> str:
    facts = dict(decision.facts)
    if decision.kind == "break" and "called at" not in facts:
        return decision.subject[0]
    if decision.kind == "recompile" and ("called at" in facts or "line" in facts):
        return str(facts.get("called at") or facts["line"])
    if decision.subject and decision.subject[0].endswith(")") and " (" in decision.subject[0]:
        return decision.subject[0].rpartition("(")[2][:-1]
    if "called at" in facts:
        return str(facts["called at"])
    return next((places[str(name)] for name in decision.subject if str(name) in places), "")


def _places_by_subject(record: Record) -> dict[str, str]:
    """The user's lines of nests, kernels, calls and nodes, by the names that decisions give them."""
    found: dict[str, str] = {}
    for plan in last_plans(record):
        for source in plan.sources:
            if source.place:
                found.setdefault(source.node, source.place)
        sources = {source.node: source for source in plan.sources}
        for step in plan.steps:
            for name, origins in _origins(step):
                place = next((sources[o].place for o in origins if o in sources and sources[o].place), "")
                if place:
                    found.setdefault(name, place)
    return found


def _origins(step: KernelCall | LibraryCall) -> Iterator[tuple[str, list[str]]]:
    if isinstance(step, LibraryCall):
        yield step.name, list(step.origin)
        return
    for nest in step.nests:
        yield nest.name, [name for equation in nest.body for name in equation.origin]


def graph_summaries(record: Record) -> list[GraphSummary]:
    """The regions in the order in which they were compiled."""
    return [
        GraphSummary(plan.name, plan.kernel_count, plan.library_count, sum(n for _, n in _moved(plan, gm)))
        for plan, gm in planned_graphs(record)
    ]


def user_kernels(record: Record) -> list[Work]:
    """Kernels, those that move most bytes first; those of one name and equal lines are one."""
    return _grouped(record, KernelCall)


def library_work(record: Record) -> list[Work]:
    """Library calls by operation, those that move most bytes first."""
    return _grouped(record, LibraryCall)


def _grouped(record: Record, kind: type[KernelCall] | type[LibraryCall]) -> list[Work]:
    moved = [(plan, step, nbytes) for plan, gm in planned_graphs(record) for step, nbytes in _moved(plan, gm)]
    total = sum(nbytes for *_, nbytes in moved) or 1
    groups: dict[str, list[tuple[Plan, KernelCall | LibraryCall, int]]] = {}
    for plan, step, nbytes in moved:
        if isinstance(step, kind):
            name = step.op if isinstance(step, LibraryCall) else step.kernel
            groups.setdefault(name, []).append((plan, step, nbytes))
    made = [_work(name, group, total) for name, group in groups.items()]
    return sorted(made, key=lambda work: (-work.nbytes, -work.count))


def _work(name: str, group: list[tuple[Plan, KernelCall | LibraryCall, int]], total: int) -> Work:
    nbytes = sum(n for _, _, n in group)
    regions = tuple(dict.fromkeys(plan.name for plan, _, _ in group))
    places = Counter(place for plan, step, _ in group for place in user_places(plan, step))
    plan, step, _ = group[0]
    how = _schedule(plan, name) if isinstance(step, KernelCall) else step.reason
    return Work(name, regions, len(group), nbytes, nbytes / total, tuple(p for p, _ in places.most_common()), how)


def _schedule(plan: Plan, name: str) -> str:
    kernel = next(kernel for kernel in plan.kernels if kernel.name == name)
    return ", ".join(dict.fromkeys(schedule.kind for schedule in kernel.schedules))


def user_places(plan: Plan, step: KernelCall | LibraryCall) -> list[str]:
    """The lines of a step with the operations at each of them."""
    sources = {source.node: source for source in plan.sources}
    by_line: dict[str, list[str]] = {}
    for _, origins in _origins(step):
        for origin in origins:
            source = sources.get(origin)
            if source is not None and source.place:
                by_line.setdefault(_where(source.place), []).append(_operation(source.op))
    return [f"{place} {'+'.join(dict.fromkeys(ops))}" for place, ops in by_line.items()]


def _operation(op: str) -> str:
    """An operation without its namespace and overload."""
    return op.removeprefix("aten.").partition(".")[0]


def _moved(plan: Plan, gm: GraphModule | None) -> Iterator[tuple[KernelCall | LibraryCall, int]]:
    """Each step with the bytes that it reads and writes at least."""
    buffers, sizes = plan.buffer_map(), Sizes(plan, gm)
    yield from ((step, sum(bytes_of(step, buffers, sizes))) for step in plan.steps)
