"""The search: each candidate in a process of its own, rows from the journal where they are known, one choice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lamina.base.devices import kind_of
from lamina.base.plurals import counted
from lamina.base.user_warnings import warn_user
from lamina.errors import BadArgument
from lamina.runtime.clock import CLOCK
from lamina.tuner.arguments import checked, checked_lists, journal_path, seconds_of
from lamina.tuner.candidates import by_torch, candidates_for, device_of, devices_of, drawing_alike, lacking
from lamina.tuner.choice import CLEARLY, contest, majority, slight, unsure
from lamina.tuner.compiled import before_compiled
from lamina.tuner.fleet import Fleet
from lamina.tuner.identity import row_key, subject_key
from lamina.tuner.journal import Journal
from lamina.tuner.lanes import Lanes
from lamina.tuner.memory import available_memory
from lamina.tuner.mixes import candidates_for_parts, mixed, parts_named, refined
from lamina.tuner.objective import Objective, parse_objective
from lamina.tuner.parts import modules_in, tensors_of
from lamina.tuner.process import GRACE, Processes
from lamina.tuner.programs import Subject
from lamina.tuner.progress import Progress
from lamina.tuner.result import Environment, Result, refusal
from lamina.tuner.samples import samples_of
from lamina.tuner.settings import TorchSettings
from lamina.tuner.table import SPENT
from lamina.tuner.torch_private import COMPILER_OF_CPU
from lamina.tuner.values import CHOOSABLE, EAGER, Candidate, Figures, Row
from lamina.tuner.verification import Allowed
from lamina.tuner.worker import EAGER_FAILED, Job

__all__ = ["EXECUTORS", "tune"]

EXECUTORS = ("local", "local:4", "ray")
"""Where candidates are measured; 4 stands for any number at a time."""

_SEE = (
    "see that model(*inputs) runs, with the loss or metric if there is one, and fits its limits; the items of a tuple "
    "are the arguments of one call"
)

_COPIES = (
    "give a smaller model or input, or more memory: the process of a candidate has a copy of the model, and runs it in "
    "double precision too"
)
_LATE = "give a larger budget or candidate_seconds, or a smaller input"
_EMPTY = "give it its weights first: it is on the device meta, which has none"

_KEEP = "keep what one call leaves for the next, such as a cache, in tensors of buffers, or pass it as an argument"

_SHARE = 0.25
"""Of the budget, what one candidate may take at most."""
_LEAST_LIMIT = 60.0
"""Seconds that a candidate is given however small the budget, as long as that lasts."""
_OF_FREE = 0.8
"""Of the memory that is free, what a candidate may take."""
_MORE_FREE = 1.5
"""Times the memory that a candidate ran out of, from which it is tried again where no limit is given."""


def tune(
    model: Callable[..., Any],
    inputs: Any,
    *,
    objective: str | Objective = "latency",
    budget: str | float = "10min",
    loss: Callable[[Any], Tensor] | None = None,
    metric: Callable[[Callable[..., Any]], float] | None = None,
    max_drop: float | None = None,
    candidates: Sequence[Candidate] | None = None,
    journal: str | Path | bool = True,
    resume: bool = True,
    seconds: float = 3.0,
    threshold: float = 0.01,
    candidate_seconds: float | None = None,
    memory_limit: float | None = None,
    modules: bool | Sequence[str] | None = None,
    executor: str = "local",
    progress: bool = False,
) -> Result:
    """The fastest way to run ``model`` that gives what eager gives.

    ``inputs``: a tensor, a tuple of arguments or a mapping of keyword arguments for one call, or an iterable of those,
    such as a ``DataLoader``. ``objective``: latency, throughput or memory, and limits such as ``"throughput,
    latency<=5ms, memory<=8GB, error<=1e-3"``. ``budget``: seconds, or text such as ``"10min"``; a candidate takes a
    quarter of it at most, or ``candidate_seconds``, and ``memory_limit`` bytes. ``loss`` of the output makes it
    training: gradients are verified and a step is timed. ``metric`` of a callable is a number that may be ``max_drop``
    below eager's. Candidates in fewer bits than eager are tried only with an error limit or with a metric.

    ``modules``: parts of the model that get candidates of their own, by name; True, and where ``candidates`` are not
    given: those that take most of the time; False: none. Those that make the whole faster are put together, one by one,
    as long as each makes the mix faster.

    Each candidate is built, verified and timed in a process of its own, in turns with eager, for ``seconds``; faster is
    what is so by more than ``threshold`` and beyond noise. Rows are kept in the file ``journal`` (True: one in the
    cache folder, False: none) and not measured again for the same model, inputs, versions and device, unless ``resume``
    is False.

    ``executor``: "local" for one candidate at a time on this machine; "local:4" for four at a time, each on as many
    cores as torch has threads, or for a model on a GPU each on a GPU of its own; "ray" for as many at a time as the
    machines of a Ray cluster that are of this one's kind have room for, each on as many CPUs as torch has threads, and
    a GPU.

    Raises ``BadArgument`` for wrong arguments, a model that fails in eager, and limits that nothing keeps.
    """
    numbers = {"seconds": seconds, "candidate_seconds": candidate_seconds, "memory_limit": memory_limit}
    checked(model, {"loss": loss, "metric": metric}, numbers, {"threshold": threshold, "max_drop": max_drop})
    checked_lists(candidates, modules)
    side_by_side = _at_a_time(executor)
    if (metric is None) != (max_drop is None):
        raise BadArgument("metric and max_drop go together", remedy="give both, or neither")
    model = _before_compiled(model)
    subject = Subject(model, samples_of(inputs), loss, metric)
    goal = parse_objective(objective)
    held = modules_in(model)
    parts_named(modules or (), (), held)
    allowed = Allowed(goal.error, max_drop)
    lossy = allowed.error is not None or allowed.drop is not None
    chosen = candidates_for(subject, lossy=lossy) if candidates is None else tuple(candidates)
    refused = [c.name for c in chosen if c.lossy and not lossy]
    if refused:
        raise BadArgument(
            f"{', '.join(refused)} computes in fewer bits than eager",
            remedy='allow an error in the objective, such as "latency, error<=1e-2", or give metric and max_drop',
        )
    limits = _Limits(seconds_of(budget), candidate_seconds, None if memory_limit is None else int(memory_limit))
    job = Job(EAGER, TorchSettings.here(), seconds, threshold, allowed, limits.memory)
    book = Journal(journal_path(journal))
    environment = Environment.here(device_of(subject))
    known = book.rows()
    with Progress(progress, limits.budget) as told, contextlib.ExitStack() as opened:
        search = _Search(subject, job, limits, book, environment, told, known if resume else None)
        if kind_of(device_of(subject)).host and any(by_torch(candidate) for candidate in chosen):
            search.preload = COMPILER_OF_CPU
        search.fleet = _fleet_of(executor, side_by_side, search, opened)
        rows = search.rows((EAGER,))
        if candidates is None and rows[0].draws and metric is None:
            chosen = drawing_alike(chosen)
        rows += search.rows(chosen)
        wanted = candidates is None if modules is None else modules
        parts = parts_named(wanted, rows[0].parts, held)
        singles = search.rows(candidates_for_parts(parts, chosen))
        singles += search.rows(refined(singles, chosen))
        rows += [*singles, *mixed(singles, lambda mix: search.rows((mix,))[0])]
        rows = search.settled(rows, goal)
    return _right(Result(model, rows, goal, environment), subject, allowed)


def _before_compiled(model: Callable[..., Any]) -> Callable[..., Any]:
    """The model as it was before the user compiled it: what runs it is for the search to find, eager as it is."""
    model, paths = before_compiled(model)
    if paths:
        what = f"modules of the model were compiled already ({', '.join(paths)})"
        text = f"{what if all(paths) else 'the model was compiled already'}: it is tuned as it was before"
        warn_user(text, "use result.model in its place: torch.compile and Lamina are among the candidates")
    return model


def _at_a_time(executor: str) -> int:
    """Candidates side by side on this machine; 0 for one after the other, and for a cluster. Raises ``BadArgument``."""
    kind, _, count = executor.partition(":") if isinstance(executor, str) else ("", "", "")
    if executor in ("local", "ray"):
        return 0
    if kind == "local" and count.isascii() and count.isdigit() and int(count) > 0:
        return int(count)
    raise BadArgument(f"executor is {executor!r}", remedy=f"give one of {', '.join(EXECUTORS)}")


def _fleet_of(
    executor: str, side_by_side: int, search: _Search, opened: contextlib.ExitStack
) -> Callable[[], Fleet | Lanes] | None:
    """What starts the executor of several candidates at a time, which ``opened`` ends; None for one at a time. Raises
    ``BadArgument``.
    """
    device, *others = devices_of(search.subject)
    threads = search.job.settings.threads
    gpus = [str(d) for d in (device, *others) if kind_of(d).queued]
    if len(gpus) > 1 and executor != "local":
        raise BadArgument(
            f"the model is on {', '.join(gpus)}, and by executor {executor!r} a candidate has one GPU",
            remedy='give executor="local"',
        )
    if executor == "ray":
        return lambda: opened.enter_context(Fleet(search.subject, device, threads, search.preload))
    if side_by_side:
        lanes = Lanes(search.started(), side_by_side, device, threads)
        return lambda: opened.enter_context(lanes)
    return None


@dataclass(frozen=True, slots=True)
class _Limits:
    """Seconds for all and for one candidate, and bytes for one."""

    budget: float
    given: float | None
    given_memory: int | None

    @property
    def candidate(self) -> float:
        return max(_LEAST_LIMIT, self.budget * _SHARE) if self.given is None else self.given

    @property
    def memory(self) -> int:
        if self.given_memory is not None:
            return self.given_memory
        return int((available_memory() or 0) * _OF_FREE)

    def holds(self, row: Row) -> bool:
        """Whether a row of an earlier run is what it would be now: not if it ended by a limit that is larger now."""
        if row.verdict == "hung":
            return self.candidate <= row.limit
        if row.verdict == "out of memory" and row.limit:
            return self.memory <= row.limit * (1.0 if self.given_memory is not None else _MORE_FREE)
        return True


class _Search:
    """One pass over the candidates. ``known``: rows of the journal; None where all are to be measured again."""

    def __init__(
        self,
        subject: Subject,
        job: Job,
        limits: _Limits,
        book: Journal,
        environment: Environment,
        told: Progress,
        known: dict[str, Row] | None,
    ) -> None:
        self.known = known
        self.own: Figures | None = None  # eager's, in a process of its own
        self.job, self.limits, self.book, self.environment, self.told = job, limits, book, environment, told
        self.subject = subject
        self.key = subject_key(subject)
        self.processes: Processes | None = None  # made when the first row is not known
        self.preload: tuple[str, ...] = ()
        self.fleet: Callable[[], Fleet | Lanes] | None = None
        self.spread: Fleet | Lanes | None = None  # as well
        self.end = CLOCK.now() + limits.budget
        self.last = 0.0  # seconds that the user's process will take to build what may be chosen

    def rows(self, candidates: Sequence[Candidate]) -> list[Row]:
        """A row for each candidate, from those that are known or measured now."""
        self.told.more(len(candidates))
        jobs = [replace(self.job, candidate=candidate) for candidate in candidates]
        found: dict[int, Row] = {}
        for number, row in self._each(jobs):
            self.told.row(row)
            eager = row.candidate == EAGER
            if row.reason.startswith(EAGER_FAILED) or (eager and row.verdict != "baseline"):
                differs = row.verdict == "refused"
                what = f"two calls of the model give different results, {row.reason}" if differs else row.reason
                known = {"refused": _KEEP, "out of memory": _COPIES, "hung": _LATE}
                remedy = known.get(row.verdict, _SEE)
                if any(not kind_of(tensor).stored for tensor in tensors_of(self.subject.model)):
                    remedy = _EMPTY
                raise BadArgument(f"nothing can be tuned: {what}", remedy=remedy)
            if eager:
                self.own = row.figures
            elif row.figures is not None:
                self.last = max(self.last, row.figures.build_seconds)
            found[number] = row
        return [found[number] for number in range(len(jobs))]

    def settled(self, rows: Sequence[Row], goal: Objective) -> list[Row]:
        """The rows with what came of those that may be the fastest against simpler ones, timed in one process."""
        weak = slight(rows, goal)
        found = [self._again(replace(self.job, candidate=r.candidate), r) if r in weak else r for r in rows]
        while (pair := contest(found, goal)) is not None:
            better, simpler = pair
            threshold = max(self.job.threshold, CLEARLY)
            job = replace(self.job, candidate=better.candidate, rival=simpler.candidate, threshold=threshold)
            row = self._known(job) or self._measured(job)
            if row.figures is not None and unsure(row.figures):
                row = self._again(job, row)
            if row.figures is None or row.verdict not in CHOOSABLE:
                break  # what fails beside another says nothing of either alone
            name = simpler.candidate.name
            told = (
                "" if row.verdict == "faster" else f"{row.figures.speedup} of {name} in one process, which is simpler"
            )
            settled = replace(better, against=(*better.against, (name, row.verdict)), reason=told or better.reason)
            found = [settled if other is better else other for other in found]
        return found

    def _again(self, job: Job, row: Row) -> Row:
        """What most of three processes say: ``row`` of the first, and of two others, as far as there is time."""
        jobs = [replace(job, attempt=attempt) for attempt in (1, 2)]
        return majority([row, *(self._known(again) or self._measured(again) for again in jobs)])

    def _each(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Row]]:
        """The rows with the numbers of their jobs, as they come."""
        spread = []
        for number, job in enumerate(jobs):
            row = self._known(job) or _not_there(job)
            if row is None and self.fleet is not None:
                spread.append(number)
            else:
                yield number, row or self._measured(job)
        if not spread:
            return
        rest = dict.fromkeys(spread)
        for number, row in self._by_fleet([jobs[number] for number in spread]):
            del rest[spread[number]]
            yield spread[number], row
        if rest and all(self._left(jobs[number]) > 0 for number in rest):
            warn_user(f"no worker of the executor is left: {counted(len(rest), 'candidate')} run here, one at a time")
        for number in rest:
            yield number, self._measured(jobs[number])

    def _by_fleet(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Row]]:
        """The rows that a cluster gives; those for which there is no time or no machine are left out."""
        assert self.fleet is not None
        if self.spread is None:
            self.spread = self.fleet()
        if self.limits.given_memory is None:
            jobs = [replace(job, memory=job.memory // self.spread.slots) for job in jobs]

        def told(job: Job, stage: str) -> None:
            self.told.stage(job.candidate, stage)

        for number, row, limit in self.spread.rows(jobs, self._left, told):
            yield number, self._kept(jobs[number], row, limit)

    def _key(self, job: Job) -> str:
        return row_key(self.key, job.facts(), self.environment.device, self.environment.versions)

    def _known(self, job: Job) -> Row | None:
        """The row of the journal, where it holds for the limits of this run; the file does not say what is run."""
        row = None if self.known is None else self.known.get(self._key(job))
        return replace(row, candidate=job.candidate) if row is not None and self.limits.holds(row) else None

    def _left(self, job: Job) -> float:
        """Seconds that a candidate may take now. Eager is always run: without it there is nothing to say."""
        if job.candidate is EAGER:
            return self.limits.candidate
        kept = min(self.last, self.limits.budget * _SHARE)
        return min(self.limits.candidate, self.end - CLOCK.now() - kept)

    def _measured(self, job: Job) -> Row:
        left = self._left(job)
        if left <= 0:
            return Row(job.candidate, "not tried", SPENT)
        turn = self.book.turn(self.key, left + 2 * GRACE)
        if turn is None:
            return self._examined(job)
        if not turn.acquire(blocking=False):
            self.told.stage(job.candidate, "waits for another run")
            turn.acquire()
        try:
            return self._taken(job) or self._examined(job)
        finally:
            turn.release()

    def _taken(self, job: Job) -> Row | None:
        """The row, if another run has measured it meanwhile."""
        if self.known is not None:
            self.known.update(self.book.rows())
        return self._known(job)

    def started(self) -> Processes:
        """What starts the processes of candidates."""
        if self.processes is None:
            self.processes = Processes(self.subject, self.preload)
        return self.processes

    def _examined(self, job: Job) -> Row:
        limit = self._left(job)
        if limit <= 0:
            return Row(job.candidate, "not tried", SPENT)
        told = self.told
        row, self.own = self.started().examine(job, limit, self.own, lambda stage: told.stage(job.candidate, stage))
        return self._kept(job, row, limit)

    def _kept(self, job: Job, row: Row, limit: float) -> Row:
        """The row, which is in the journal from now on if it is not for want of time alone."""
        if row.verdict == "hung" and limit < self.limits.candidate:
            return replace(row, verdict="not tried", reason=f"the budget was spent: {row.reason}")
        if not row.reason.startswith(EAGER_FAILED):
            facts = {"device": dict(self.environment.device), "versions": dict(self.environment.versions)}
            self.book.append(self._key(job), row, facts)
        return row


def _not_there(job: Job) -> Row | None:
    missing = lacking(job.candidate)
    return Row(job.candidate, "unavailable", missing) if missing else None


def _right(result: Result, subject: Subject, allowed: Allowed) -> Result:
    """The result whose choice is right in this process too: each that is not becomes a refused row."""
    while True:
        wrong = refusal(result, subject, allowed)
        if not wrong:
            return result
        rows = [
            replace(row, verdict="refused", reason=f"in the tuned process: {wrong}") if row is result.chosen else row
            for row in result.rows
        ]
        result = Result(result.original, rows, result.objective, result.environment)
