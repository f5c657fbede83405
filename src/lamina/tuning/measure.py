"""Timing candidates against each other: few samples of each, more of those that are close, none after enough."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lamina.tuning.reasons import NOT_SURELY_FASTER, NOT_TIMED
from lamina.tuning.values import ENOUGH, Measurement

__all__ = ["Sampler", "Timing", "beside_others", "glance", "in_turns", "race"]

Sampler = Callable[[int], Sequence[float]]
"""Runs a candidate so many times, each on a cold cache, and gives the microseconds of each run."""

Timing = Callable[[Mapping[str, Sampler], float | None, float, Callable[[], float]], "tuple[Measurement, ...]"]
"""Times candidates in their order, given the time that none can beat, seconds to spend, and a clock of seconds."""

_FIRST = 5
"""Samples of each candidate in the first round."""
_SECOND = 10
"""Samples more of each candidate that is close to the fastest."""
_CLOSE = 1.05
"""Candidates this near to the fastest are sampled again."""

_GLANCE = 1.3
"""A candidate whose first sample takes this many times as long as the fastest has no second."""

_TURNS, _IN_TURN = 7, 2
"""Most turns, and samples of each candidate in a turn."""

_FEWEST = 6
"""Samples that a figure rests on where time was over before the turns were, and of runs that are long."""

_LONG = 500.0
"""Microseconds of a run from which samples differ less than candidates do."""

_FAR = 1.12
"""Candidates this far from the fastest after one turn have no second."""

_ROUNDS = 15
"""Most turns of a comparison between candidates that differ by a few percent."""
_NEAR = {3: 1.25, 6: 1.1}
"""After so many rounds, how many times as long as the fastest a candidate may take to stay."""

_AGREE = 0.75
"""Share of the rounds in which another must be faster than the first to count as faster."""


@dataclass(slots=True)
class _Runner:
    label: str
    sampler: Sampler
    times: list[float] = field(default_factory=list)
    reason: str = ""
    skipped: bool = False

    def run(self, samples: int) -> None:
        """Add samples; a failure ends this candidate alone."""
        try:
            self.times.extend(self.sampler(samples))
        except Exception as error:
            self.times.clear()
            self.reason = f"{type(error).__name__}: {error}"[:200]

    @property
    def median(self) -> float:
        return statistics.median(self.times) if self.times else float("inf")


def race(
    samplers: Mapping[str, Sampler],
    bound: float | None,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Measurement, ...]:
    """Time the candidates in their order; stop when one reaches 97 % of ``bound`` or the ``seconds`` are over.

    A candidate whose sampler raises drops out with the reason. At least one is timed, however short the time.
    """
    begun = clock()
    runners = [_Runner(label, sampler) for label, sampler in samplers.items()]
    stopped: str = ""
    for runner in runners:
        if stopped:
            runner.reason, runner.skipped = stopped, True
            continue
        runner.run(_FIRST)
        if runner.times and bound is not None and bound >= ENOUGH * runner.median:
            stopped = NOT_TIMED(why=f"{runner.label} reached {bound / runner.median:.0%} of the bound")
        elif runner.times and clock() - begun > seconds:
            stopped = NOT_TIMED(why=f"{seconds:g} s were over")
    best = min((r.median for r in runners), default=float("inf"))
    close = [r for r in runners if r.times and r.median <= _CLOSE * best]
    if len(close) > 1 and clock() - begun <= seconds:
        # In turns, so that a change of the clock rate meets all of them.
        for part in range(2):
            for runner in close if part % 2 else close[::-1]:
                runner.run(_SECOND // 2)
    return tuple(
        Measurement(r.label, r.median if r.times else None, len(r.times), r.reason, r.skipped) for r in runners
    )


def glance(
    samplers: Mapping[str, Sampler],
    best: float,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Measurement, ...]:
    """Time candidates of which most are slower than what took ``best`` microseconds: one sample each, some more of
    those that may be faster. Ends when the ``seconds`` are over; what was not timed has no figure then.
    """
    begun = clock()
    runners = [_Runner(label, sampler) for label, sampler in samplers.items()]
    for runner in runners:
        if clock() - begun > seconds:
            runner.reason, runner.skipped = NOT_TIMED(why=f"{seconds:.1f} s were over"), True
            continue
        runner.run(1)
        if runner.times and runner.median <= _GLANCE * best:
            runner.run(_FIRST - 1)
            best = min(best, runner.median)
    return tuple(
        Measurement(r.label, r.median if r.times else None, len(r.times), r.reason, r.skipped) for r in runners
    )


def in_turns(
    samplers: Mapping[str, Sampler],
    bound: float | None,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Measurement, ...]:
    """Time all candidates in turns, a few samples each, then again those that are near the fastest, and the first.

    For candidates that differ by a few percent: the clock rate falls while a GPU works, and turns show all of them the
    same rates. Ends when one reaches 97 % of ``bound``, after few samples where runs are long, or when the ``seconds``
    are over. A candidate whose sampler raises drops out with the reason. Where time was over, few samples count as
    none: the first that was timed stands alone.
    """
    begun = clock()
    runners = [_Runner(label, sampler) for label, sampler in samplers.items()]
    turn, over = runners, False
    for number in range(_TURNS):
        for runner in turn if number % 2 == 0 else turn[::-1]:
            over = over or (clock() - begun > seconds and any(r.times for r in runners))
            if not over:
                runner.run(_IN_TURN)
        best = min((r.median for r in runners), default=float("inf"))
        if over or (bound is not None and bound >= ENOUGH * best):
            break
        if best >= _LONG and (number + 1) * _IN_TURN >= _FEWEST:
            break
        near = _FAR if number == 0 else _CLOSE
        turn = [r for r in runners if r.times and (r is runners[0] or r.median <= near * best)]
        if len(turn) < 2:
            break
    standing = next((r for r in runners if r.times), None)
    for runner in runners if over else []:
        if runner is not standing and not runner.reason and len(runner.times) < _FEWEST:
            runner.times.clear()
            runner.reason, runner.skipped = NOT_TIMED(why=f"{seconds:g} s were over"), True
    return tuple(
        Measurement(r.label, r.median if r.times else None, len(r.times), r.reason, r.skipped) for r in runners
    )


def beside_others(
    samplers: Mapping[str, Sampler],
    bound: float | None,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Measurement, ...]:
    """Time candidates on a processor that may have other work: that only adds time, to one sample more than to another.

    Each runs once in every round; far slower ones have no further round. A figure is the lower quartile, and another
    than the first has one only if it was faster in three quarters of the rounds, or is slower. Where time was over
    after a few rounds the first stands alone.
    """
    begun = clock()
    runners = [_Runner(label, sampler) for label, sampler in samplers.items()]
    turn, rounds = runners, 0
    while rounds < _ROUNDS and turn and (clock() - begun <= seconds or not rounds):
        for runner in turn if rounds % 2 == 0 else turn[::-1]:
            runner.run(1)
        rounds += 1
        turn = [r for r in turn if r.times]
        if rounds in _NEAR and turn:
            limit = _NEAR[rounds] * min(min(r.times) for r in turn)
            turn = [r for r in turn if r is runners[0] or min(r.times) <= limit]
            if turn == runners[:1]:
                break
    standing = next((r for r in runners if r.times), None)
    for runner in runners:
        if runner is standing or standing is None or not runner.times:
            continue
        if rounds < _FEWEST and clock() - begun > seconds:
            runner.times.clear()
            runner.reason, runner.skipped = NOT_TIMED(why=f"{seconds:g} s were over"), True
            continue
        pairs = list(zip(runner.times, standing.times, strict=False))
        faster = sum(mine < other for mine, other in pairs)
        ahead = len(pairs) >= _FEWEST and _low(runner.times) < _low(standing.times)
        if ahead and faster < _AGREE * len(pairs):
            runner.reason = NOT_SURELY_FASTER(faster=faster, rounds=len(pairs))
    return tuple(
        Measurement(r.label, _low(r.times) if r.times and not r.reason else None, len(r.times), r.reason, r.skipped)
        for r in runners
    )


def _low(times: Sequence[float]) -> float:
    """The lower quartile."""
    return statistics.quantiles(times, n=4, method="inclusive")[0] if len(times) > 1 else times[0]
