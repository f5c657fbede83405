"""The choice among candidates: remembered from an earlier process, measured now, or left to the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

from lamina.tuning.measure import Sampler, Timing, race
from lamina.tuning.reasons import LITTLE_TO_GAIN, MODEL_IS_SURE
from lamina.tuning.values import ENOUGH, Candidate, Choice, Measurement, Policy, Task

__all__ = ["Notes", "guess", "keep", "measured", "remembered", "worth_asking", "worth_timing"]


class Notes(Protocol):
    """Where winners are kept: small named notes, and a lock for each name's first two digits."""

    def note(self, name: str) -> Mapping[str, Any] | None: ...

    def write_note(self, name: str, content: Mapping[str, Any]) -> None: ...

    def lock(self, stripe: str) -> AbstractContextManager[object]: ...


def guess(task: Task, reason: str, measurements: tuple[Measurement, ...] = ()) -> Choice:
    """The model's choice, and why nothing is measured."""
    return Choice(task, task.candidates[0], "model", reason, measurements)


def worth_asking(expected: float, policy: Policy) -> str:
    """Why a kernel that should take so many microseconds is left to the model, "" if its candidates are wanted."""
    if expected <= 0:
        return "it moves nothing"
    return LITTLE_TO_GAIN(why=f"it is expected to take {expected:.1f} us") if expected < policy.least else ""


def worth_timing(task: Task, policy: Policy) -> str:
    """Why the task is left to the model, "" if it should be measured."""
    if len(task.candidates) < 2:
        return "there is one candidate"
    first, second = task.candidates[0].predicted, task.candidates[1].predicted
    if first is not None and second is not None and second > first * (1 + policy.doubt):
        return MODEL_IS_SURE(percent=f"{second / first - 1:.0%}")
    return ""


def remembered(
    task: Task, policy: Policy, notes: Notes, read: Callable[[object], Any] = lambda _: None
) -> Choice | None:
    """The winner that an earlier process found among at least the candidates that the policy would time.

    ``read`` gives the value of a winner that is none of the task's candidates from what ``keep`` noted, or None.
    """
    note = notes.note(task.key)
    if note is None:
        return None
    try:
        figures = {str(label): float(us) for label, us in note["microseconds"].items()}
        reasons = {str(label): str(why) for label, why in note["reasons"].items()}
        winner, reached = str(note["winner"]), bool(note["reached"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    wanted = task.candidates[: policy.candidates]
    by_label = {c.label: c for c in task.candidates}
    if winner not in by_label and (value := read(note.get("value"))) is not None:
        by_label[winner] = Candidate(winner, value)
    if winner not in by_label or not (reached or all(c.label in figures or c.label in reasons for c in wanted)):
        return None
    found = [Measurement(label, us) for label, us in figures.items()]
    found += [Measurement(label, None, 0, why) for label, why in reasons.items()]
    searched = note.get("searched") is True
    return Choice(task, by_label[winner], "remembered", "an earlier process timed it", tuple(found), searched=searched)


def measured(
    task: Task,
    policy: Policy,
    notes: Notes,
    samplers: Callable[[], Mapping[str, Sampler]],
    failures: Mapping[str, str],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    timing: Timing = race,
) -> Choice:
    """Time the candidates, unless another process does so meanwhile, and keep the winner.

    ``samplers`` gives those that can be run, in the task's order; ``failures`` says of others why they cannot;
    ``timing`` is how.
    """
    with notes.lock(task.key[:2]):
        found = remembered(task, policy, notes)
        if found is not None:
            return found
        started = clock()
        results = timing(samplers(), task.bound, seconds, clock)
        spent = clock() - started
        results += tuple(Measurement(label, None, 0, why) for label, why in failures.items())
        choice = _decided(task, results, policy.tie)
        if choice.times:
            keep(choice, notes)
    return replace(choice, seconds=spent)


def _decided(task: Task, results: tuple[Measurement, ...], tie: float) -> Choice:
    times = {m.label: m.microseconds for m in results if m.microseconds is not None}
    if not times:
        return guess(task, "no candidate could be timed", results)
    by_label = {c.label: c for c in task.candidates}
    fastest = min(times, key=lambda label: times[label])
    first: Candidate = task.candidates[0]
    if first.label in times and times[first.label] <= tie * times[fastest]:
        return Choice(task, first, "measured", f"the best guess of {len(times)} timed", results)
    ahead = f"{times[first.label] / times[fastest] - 1:.0%} before the best guess, " if first.label in times else ""
    return Choice(task, by_label[fastest], "measured", f"{ahead}the fastest of {len(times)} timed", results)


def keep(choice: Choice, notes: Notes, value: object = None) -> None:
    """Note the choice for later processes; ``value`` is what ``remembered`` reads a winner from that is no candidate
    (JSON's types).
    """
    times, bound = choice.times, choice.task.bound
    content = {
        "kind": "tune",
        "subject": choice.task.subject,
        "winner": choice.winner.label,
        "microseconds": dict(times),
        "reasons": {m.label: m.reason for m in choice.measurements if m.microseconds is None and not m.skipped},
        "reached": bound is not None and bound >= ENOUGH * min(times.values()),
        "bound": bound,
        "searched": choice.searched,
        "value": value,
    }
    notes.write_note(choice.task.key, content)
