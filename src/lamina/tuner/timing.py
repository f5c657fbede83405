"""A candidate and eager timed in turns, eager twice: what eager differs from itself is the noise."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lamina.base.devices import kind_of
from lamina.tuner.statistics import interval, paired
from lamina.tuner.values import Interval

__all__ = ["Clock", "Race", "race"]

SHORTEST_SAMPLE = 500e-6
"""Seconds that a sample lasts at least; of faster calls several are one sample."""
FEWEST, MOST = 24, 1536
"""Rounds before the first look at the intervals, and after the last; each look is at twice as many as before."""
LONGER = 4.0
"""Times the given seconds that a race lasts at most which is not decided: the machine is too busy, or it is close."""
WARM_CALLS = 3
"""Calls of each before the first round, beside those that compiled it."""


@dataclass(frozen=True, slots=True)
class Race:
    """Seconds per call in each round, and what follows: the ratio eager to candidate, eager to itself, the verdict."""

    candidate: tuple[float, ...]
    eager: tuple[float, ...]
    speedup: Interval
    noise: float
    verdict: str


class Clock:
    """Seconds per call, by events of the GPU's stream for a model on a GPU.

    An event is recorded on the stream of the model's GPU, which need not be the one that is current: on another it
    would tell when work was handed over, not when it was done. Work of several GPUs has ended when all of them have.
    """

    def __init__(self, device: torch.device, *others: torch.device) -> None:
        self.devices = tuple(dict.fromkeys(d for d in (device, *others) if kind_of(d).queued))

    def seconds(self, call: Callable[[], Any], count: int) -> float:
        """Mean seconds of ``count`` calls in a row."""
        if len(self.devices) == 1:
            return self._of_stream(self.devices[0], call, count)
        self._wait()
        start = time.perf_counter()
        for _ in range(count):
            call()
        self._wait()
        return (time.perf_counter() - start) / count

    def _wait(self) -> None:
        for device in self.devices:
            torch.cuda.synchronize(device)

    def _of_stream(self, device: torch.device, call: Callable[[], Any], count: int) -> float:
        event: Any = torch.cuda.Event
        first, last = event(enable_timing=True), event(enable_timing=True)
        torch.cuda.synchronize(device)
        stream = torch.cuda.current_stream(device)
        first.record(stream)
        for _ in range(count):
            call()
        last.record(stream)
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3 / count


def race(
    eager: Callable[[], Any], candidate: Callable[[], Any], clock: Clock, *, seconds: float, threshold: float
) -> Race:
    """Time both until it is clear which is faster, or ``seconds`` are over; for up to ``LONGER`` times as long where
    the candidate looks faster by then and is not surely so, or calls are so slow that there are few rounds.

    A round is a sample of eager, one of the candidate and one of eager again, in changing order. The verdict is
    "faster" or "slower" when the interval of the ratio lies beyond 1 by more than ``threshold`` and by more than the
    interval of eager against itself reaches; else "tie". What is faster is so in more than half of the rounds as well.
    """
    calls: Mapping[str, Callable[[], Any]] = {"eager": eager, "candidate": candidate, "again": eager}
    once = {name: _warmed(call, clock) for name, call in calls.items()}
    counts = {name: max(1, round(SHORTEST_SAMPLE / max(least, 1e-9))) for name, least in once.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    start = time.monotonic()
    look, patience = FEWEST, seconds
    follows = 2 * FEWEST * sum(once.values()) < seconds  # each sample then follows a call of its own kind
    while True:
        for name in names:
            if follows:
                calls[name]()
            samples[name].append(clock.seconds(calls[name], counts[name]))
        names = [*names[1:], names[0]]
        done, spent = len(samples["eager"]), time.monotonic() - start
        late = spent >= patience and done >= (FEWEST // 3 if spent < LONGER * seconds else len(names))
        if done < look and done < MOST and not late:
            continue
        look *= 2 if done >= look else 1
        patience *= 2.0 if late else 1.0
        over = done >= MOST or patience > LONGER * seconds
        found, decided, close = _judged(samples, threshold)
        if over or decided or (not close and patience > seconds):
            return found


def _warmed(call: Callable[[], Any], clock: Clock) -> float:
    return min(clock.seconds(call, 1) for _ in range(WARM_CALLS))


def _judged(samples: Mapping[str, list[float]], threshold: float) -> tuple[Race, bool, bool]:
    """The verdict so far, whether it is certain, and whether the candidate may be faster and is not surely so."""
    speedup = interval(samples["eager"], samples["candidate"])
    again = interval(samples["again"], samples["candidate"])
    noise = interval(samples["eager"], samples["again"]).deviation
    needed = max(threshold, noise)
    low, high = min(speedup.low, again.low), max(speedup.high, again.high)
    mostly = paired(samples["eager"], samples["candidate"]) > 1.0
    verdict = "faster" if low > 1.0 + needed and mostly else "slower" if high < 1.0 - needed else "tie"
    alike = high < 1.0 + threshold and low > 1.0 - threshold
    close = speedup.middle > 1.0 + threshold and again.middle > 1.0 + threshold
    found = Race(tuple(samples["candidate"]), tuple(samples["eager"]), speedup, noise, verdict)
    return found, verdict != "tie" or alike, close
