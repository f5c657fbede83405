"""What tuning speaks of: candidates, what they measured, and the choice among them.

Nothing here knows what a candidate is. Today it is a kernel's schedule; a backend for a whole module would do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.tuning import reasons

__all__ = ["ENOUGH", "Candidate", "Choice", "Measurement", "Policy", "Task", "Tuned", "policy_of"]

ENOUGH = 0.97
"""Share of the bound from which on no other candidate is looked at."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of several ways to do the same: ``label`` tells it from the others, also in another process, ``value`` is
    for whoever carries it out, ``predicted`` what a model expects (microseconds), where there is one.
    """

    label: str
    value: Any
    predicted: float | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """Median microseconds of a candidate over ``samples`` runs, or the reason why there is no figure.

    ``skipped``: nothing speaks against the candidate, but measuring had ended. ``facts`` are further numbers that
    explain the figure, such as the registers of a thread.
    """

    label: str
    microseconds: float | None
    samples: int = 0
    reason: str = ""
    skipped: bool = False
    facts: tuple[tuple[str, int | float | str], ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """A choice to be made: ``candidates`` best guess first, ``key`` (hexadecimal) the identity of the whole question.

    ``bound`` is the time that no candidate can beat, in microseconds, where that is known.
    """

    subject: str
    key: str
    candidates: tuple[Candidate, ...]
    bound: float | None = None


_BY_SOURCE = {"model": reasons.BY_MODEL, "measured": reasons.MEASURED, "remembered": reasons.REMEMBERED}


@dataclass(frozen=True, slots=True)
class Choice:
    """The winner of a task and its ground. ``source`` is "model", "measured" or "remembered".

    ``searched``: others than the task's candidates were timed as well, and the winner may be one of them.
    """

    task: Task
    winner: Candidate
    source: str
    reason: str
    measurements: tuple[Measurement, ...] = ()
    seconds: float = 0.0
    searched: bool = False

    @property
    def times(self) -> Mapping[str, float]:
        """Microseconds by label of the candidates that were timed."""
        return {m.label: m.microseconds for m in self.measurements if m.microseconds is not None}

    @property
    def decision(self) -> Decision:
        """Taken if the winner is another than the best guess; facts: the candidates' microseconds and the bound."""
        times, bound = self.times, self.task.bound
        facts: list[tuple[str, int | float | str]] = [("winner", self.winner.label)]
        for measured in self.measurements:
            us = measured.microseconds
            facts.append((measured.label, measured.reason if us is None else round(us, 2)))
        if bound is not None:
            facts.append(("bound_us", round(bound, 2)))
            if self.winner.label in times:
                facts.append(("share", round(bound / times[self.winner.label], 3)))
        taken = self.winner.label != self.task.candidates[0].label
        reason = _BY_SOURCE[self.source](why=self.reason)
        if isinstance(self.reason, Reason):
            reason = Reason(reason, self.reason.code, self.reason.remedy)
        return Decision("tune", (self.task.subject,), taken, reason, tuple(facts))


def _of_candidate(measured: Measurement) -> Reason:
    """What became of a candidate."""
    if measured.microseconds is not None:
        return reasons.CANDIDATE_TIMED(us=f"{measured.microseconds:.1f}")
    why = measured.reason
    return why if isinstance(why, Reason) else reasons.CANDIDATE_DROPPED(why=why)


@dataclass(frozen=True, slots=True)
class Tuned:
    """The choices made for one region's kernels, in the plan's order."""

    choices: tuple[Choice, ...]

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """One for each kernel."""
        return tuple(choice.decision for choice in self.choices)

    @property
    def candidates(self) -> tuple[Decision, ...]:
        """One for each candidate that was to be timed: taken if it won."""
        return tuple(
            Decision(
                "candidate",
                (choice.task.subject, m.label),
                m.label == choice.winner.label,
                _of_candidate(m),
                () if m.microseconds is None else (("us", round(m.microseconds, 2)), ("samples", m.samples)),
            )
            for choice in self.choices
            for m in choice.measurements
        )

    def text(self) -> str:
        """A line for each kernel and each of its candidates."""
        lines: list[str] = []
        for choice in self.choices:
            lines.append(f"{choice.task.subject}: {choice.winner.label} ({choice.source}: {choice.reason})")
            for m in choice.measurements:
                figure = m.reason if m.microseconds is None else f"{m.microseconds:.2f} us, {m.samples} samples"
                lines.append(f"    {m.label}: {figure}")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Policy:
    """How much measuring is worth: at most ``candidates`` of a task, tasks that should take at least ``least``
    microseconds and whose next guess is predicted within ``doubt`` of the first (infinite: always), ``seconds`` in
    all for one region, ``patience`` seconds for its candidates to be made. The best guess stays unless another is
    faster by more than the factor ``tie``: noise must not decide.

    Tasks whose bound is at least ``probed`` microseconds are timed even if they have one candidate. What takes ``far``
    times what its work should, and ``stake`` microseconds more, is searched for a faster one, for at most ``searching``
    seconds in one region. Of a region of at most ``few`` kernels smaller gains are looked for, see ``for_region``.
    """

    candidates: int
    least: float
    doubt: float
    seconds: float
    patience: float = 20.0
    tie: float = 1.01
    probed: float = float("inf")
    far: float = 2.0
    stake: float = 20.0
    searching: float = 0.0
    few: int = 12

    def for_region(self, kernels: int) -> Policy:
        """The policy for a region of so many kernels: of few, smaller ones are timed and smaller losses searched.

        Compilers for all of their candidates run side by side (H200, ResNet bottleneck in training: 1.79 ms instead of
        2.70, its first call 5.1 s instead of 2.5). A large region's first call would take too long for what it gains
        (ConvNeXt-T in training: 42 s instead of 20, and no faster).
        """
        if kernels > self.few:
            return self
        least, doubt, seconds = min(self.least, 4.0), max(self.doubt, 0.5), max(self.seconds, 0.8)
        far, stake = min(self.far, 1.4), min(self.stake, 4.0)
        candidates = max(self.candidates, 4)  # the model's, one without gaps, the best by rank, and the rules'
        return replace(self, candidates=candidates, least=least, doubt=doubt, seconds=seconds, far=far, stake=stake)


def policy_of(mode: str) -> Policy:
    """What a mode of ``lamina.compile`` asks for."""
    if mode.startswith("max-autotune"):
        most = Policy(candidates=8, least=0.0, doubt=float("inf"), seconds=60.0, probed=0.0, searching=60.0)
        return replace(most, far=1.25, stake=2.0)
    return Policy(candidates=3, least=20.0, doubt=0.05, seconds=0.5, patience=3.0, probed=3.0, searching=4.0)
