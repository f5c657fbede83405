"""Searches for the schedules of a region's GPU kernels that take far longer than their work should."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from lamina.ir.plan import GpuSchedule, Kernel, KernelCall
from lamina.runtime.cuda_driver import Driver
from lamina.runtime.triton_build import TritonBuild, TritonUnit
from lamina.schedule.gpu import fitter
from lamina.schedule.gpu_last_block import with_last_block
from lamina.schedule.gpu_neighbours import searchable
from lamina.tuning.choose import Notes, guess, keep
from lamina.tuning.cuda_trials import Open, Trial, Trials, joins_partials, triton_unit, whole_launch
from lamina.tuning.kernels import label_of, unscheduled_us
from lamina.tuning.measure import glance
from lamina.tuning.reasons import FOUND_BY_SEARCH
from lamina.tuning.search import Search, schedule_to_json
from lamina.tuning.values import Candidate, Choice, Measurement, Policy

__all__ = ["Build", "RegionSearch"]

_MOST_TRIALS, _FIRST = 48, 100
"""Schedules that searches have compiled at once, and the number of the first one."""

Build = Callable[[Sequence[TritonUnit], float], TritonBuild]
"""Compiles units in at most so many seconds; those that are not ready then have errors."""


@dataclass(slots=True)
class _Searched:
    """A kernel whose schedule is searched for, and what became of the schedules that were tried.

    ``cut``: time ended before some were compiled or run, so that nothing is known of them.
    """

    open: Open
    choice: Choice
    search: Search
    measurements: list[Measurement] = field(default_factory=list)
    ended: bool = True
    cut: bool = False


@dataclass(frozen=True, slots=True)
class _Asked:
    """Schedules that are to be timed for a search, and why some cannot be."""

    one: _Searched
    schedules: tuple[GpuSchedule, ...]
    trials: list[Trial]
    failures: dict[str, str]


class RegionSearch:
    """The searches of one region, all at once: what loses most comes first, as long as there is time."""

    def __init__(self, trials: Trials, policy: Policy, notes: Notes) -> None:
        self.trials, self.policy, self.notes = trials, policy, notes
        self.searched: list[_Searched] = []

    def _expected(self, kernel: Kernel, call: KernelCall, bound: float) -> float:
        """Microseconds that the work of a launch should take."""
        nest, dtypes, lengths = whole_launch(kernel, call)
        return unscheduled_us(nest, dtypes, self.trials.target, lengths, bound)

    def is_worth(self, choice: Choice, kernel: Kernel, call: KernelCall) -> bool:
        """Whether the winner takes so much longer than its work should that a search is worth its time."""
        us, bound, winner = choice.times.get(choice.winner.label), choice.task.bound, choice.winner.value
        if us is None or bound is None or not self.policy.searching:
            return False
        if not isinstance(winner, GpuSchedule) or not searchable(winner):
            return False
        expected = self._expected(kernel, call, bound)
        return us > self.policy.far * expected and us > expected + self.policy.stake

    def add(self, o: Open, choice: Choice) -> None:
        """Search for a kernel whose planned candidates came to this choice."""
        nest, dtypes, lengths = whole_launch(o.kernel, o.call)
        fit = fitter(nest, dtypes, self.trials.target)

        def fits(schedule: GpuSchedule) -> GpuSchedule | None:
            found = fit(schedule)
            joined = not joins_partials(o.kernel) or with_last_block(o.kernel.nests, found) is not None
            return found if joined else None

        expected = self._expected(o.kernel, o.call, choice.task.bound or 0.0)
        times = choice.times
        timed = {c.value: times[c.label] for c in choice.task.candidates if c.label in times and searchable(c.value)}
        search = Search(choice.winner.value, times[choice.winner.label], expected, lengths, fits, timed)
        self.searched.append(_Searched(o, choice, search))

    def run(self, build: Build, driver: Driver) -> Iterator[Choice]:
        """Search, and give the choice for each kernel that was added. What time ends goes on in the next process."""
        ends = time.perf_counter() + self.policy.searching
        active, number = self.searched, _FIRST
        while active and (left := ends - time.perf_counter()) > 0:
            asked: list[_Asked] = []
            for one in sorted(active, key=lambda s: -s.search.lost):
                schedules = one.search.asked() if sum(len(a.trials) for a in asked) < _MOST_TRIALS else ()
                named = tuple(Candidate(label_of(s), s) for s in schedules)
                if named:
                    made = self.trials.made(one.open.kernel, one.open.call, named, number)
                    asked.append(_Asked(one, schedules, *made))
                    number += len(named)
            if not asked:
                break
            built = build([triton_unit(x) for a in asked for t in a.trials for x in t.host.launches], left)
            for one_asked in asked:
                self._glance(one_asked, built, driver, max(ends - time.perf_counter(), 0.0))
            active = [s for s in active if s.search.lost >= self.policy.stake]
        for one in active:
            one.ended = not one.cut and not one.search.asked()
        yield from map(self._found, self.searched)

    def _glance(self, asked: _Asked, built: TritonBuild, driver: Driver, seconds: float) -> None:
        """Time what a search asked for and tell it."""
        one, failures = asked.one, asked.failures
        o, search = one.open, one.search
        programs, facts = self.trials.loaded(asked.trials, built, driver, failures)
        try:
            samplers = self.trials.samplers(o.kernel, o.call, programs)
            found = glance(samplers, search.times[search.best], seconds)
        except RuntimeError as error:  # torch's out-of-memory error is one
            found = tuple(Measurement(label, None, 0, str(error)[:160]) for label in programs)
        found += tuple(Measurement(label, None, 0, why) for label, why in failures.items())
        one.measurements += [replace(m, facts=facts.get(m.label, ())) for m in found]
        one.cut = one.cut or any(m.skipped for m in found) or bool(built.errors and seconds <= 0)
        times = {m.label: float("inf") if m.microseconds is None else m.microseconds for m in found}
        search.told({schedule: times.get(label_of(schedule), float("inf")) for schedule in asked.schedules})

    def _found(self, one: _Searched) -> Choice:
        """The choice that a search came to, noted for later processes."""
        o, choice, search = one.open, one.choice, one.search
        timed = choice.measurements + tuple(one.measurements)
        before, after = search.times[search.chosen], search.times[search.best]
        count = sum(m.microseconds is not None for m in timed)
        if search.best == search.chosen:
            found = replace(choice, measurements=timed, searched=one.ended)
        else:
            winner = Candidate(label_of(search.best), search.best)
            why = FOUND_BY_SEARCH(percent=f"{before / after - 1:.0%}", count=count)
            found = Choice(choice.task, winner, "measured", why, timed, searched=one.ended)
        if o.doubt and found.winner is choice.task.candidates[0]:
            found = guess(o.task, o.doubt, timed)
            keep(replace(found, searched=one.ended), self.notes, None)
            return found
        keep(found, self.notes, schedule_to_json(search.best))
        return found
