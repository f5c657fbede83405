"""Why two operations are not one kernel: asked of the plans that a record holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lamina.ir.access import origins
from lamina.ir.loops import LibraryCall
from lamina.ir.plan import KernelCall, Plan
from lamina.record import Record
from lamina.schedule.boundaries import boundaries
from lamina.stats import last_plans
from lamina.summary import user_places

__all__ = ["Answer", "missing", "why"]


@dataclass(frozen=True, slots=True)
class Answer:
    """Two steps of a region, by name with their lines, whether they are one kernel, and the reason if they are not.

    ``count`` is how many pairs of the record have this answer; the names are those of the first of them.
    """

    region: str
    first: str
    second: str
    joined: bool
    reason: str
    code: str
    remedy: str
    count: int = 1


def why(record: Record, first: str, second: str) -> list[Answer]:
    """What is known of pairs of steps of which one is called ``first`` and the other ``second``, frequent ones first.

    A step is called by its name, a part of it, the name of its kernel, an operation (of the program or of ATen) or a
    line ("file.py:12"). Nothing is said of pairs that neither share a buffer nor follow one another through one.
    """
    found: dict[tuple[bool, str], list[Answer]] = {}
    for plan in last_plans(record):
        for answer in _of_plan(plan, first, second):
            found.setdefault((answer.joined, answer.reason), []).append(answer)
    grouped = [_counted(group) for group in found.values()]
    return sorted(grouped, key=lambda answer: -answer.count)


def missing(records: Iterable[Record], *names: str) -> list[str]:
    """Those of ``names`` by which nothing of the records is called."""
    called = [_called(plan, step) for record in records for plan in last_plans(record) for step in plan.steps]
    return [name for name in names if not any(_is(one, name) for one in called)]


def _counted(group: list[Answer]) -> Answer:
    a = group[0]
    return Answer(a.region, a.first, a.second, a.joined, a.reason, a.code, a.remedy, len(group))


def _of_plan(plan: Plan, first: str, second: str) -> list[Answer]:
    names = {step.name: _called(plan, step) for step in plan.steps}
    answers = [
        Answer(plan.name, step.name, step.name, True, "they are one kernel", "", "")
        for step in plan.steps
        if isinstance(step, KernelCall) and first != second and _both(names[step.name], first, second)
    ]
    for pair in boundaries(plan):
        one, other = names[pair.first], names[pair.second]
        if (_is(one, first) and _is(other, second)) or (_is(one, second) and _is(other, first)):
            reason = pair.reason
            answers.append(
                Answer(plan.name, one[0], other[0], False, str(reason), reason.code, reason.remedy),
            )
    return answers


def _called(plan: Plan, step: KernelCall | LibraryCall) -> tuple[str, ...]:
    """By what a step may be called: its name with its lines first."""
    places = user_places(plan, step)
    kernel = (step.kernel, *(nest.name for nest in step.nests)) if isinstance(step, KernelCall) else (step.op,)
    return (f"{step.name} ({'; '.join(places)})", step.name, *kernel, *places, *_users_words(plan, step))


def _users_words(plan: Plan, step: KernelCall | LibraryCall) -> Iterator[str]:
    """What the user's program calls the operations of a step, as ":dropout": they may become operations of other names.

    The colon tells them from others: a part of such a name is no name of the step.
    """
    places = {source.node: source.place for source in plan.sources}
    for origin in origins(step):
        if word := places.get(origin, "").partition(" ")[2]:
            yield f":{_plain(word.removesuffix(' backward'))}"


def _plain(word: str) -> str:
    return word.replace("_", "").lower()


def _is(names: tuple[str, ...], text: str) -> bool:
    return any(text in name for name in names if name[0] != ":") or f":{_plain(text)}" in names


def _both(names: tuple[str, ...], first: str, second: str) -> bool:
    return _is(names, first) and _is(names, second)
