"""Timing candidates against each other: few samples of each, more of those that are close, none after enough."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lamina.tune.values import ENOUGH, Measurement

__all__ = ["Sampler", "race"]

Sampler = Callable[[int], Sequence[float]]
"""Runs a candidate so many times, each on a cold cache, and gives the microseconds of each run."""

_FIRST = 5
_SECOND = 10
_CLOSE = 1.05
"""Candidates this near to the fastest are sampled again."""


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
    stopped = ""
    for runner in runners:
        if stopped:
            runner.reason, runner.skipped = stopped, True
            continue
        runner.run(_FIRST)
        if runner.times and bound is not None and bound >= ENOUGH * runner.median:
            stopped = f"not timed: {runner.label} reached {bound / runner.median:.0%} of the bound"
        elif runner.times and clock() - begun > seconds:
            stopped = f"not timed: {seconds:g} s were over"
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
