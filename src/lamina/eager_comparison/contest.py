"""Two ways to compute the same thing, compared call by call: a sequential test whose own cost has a limit.

What a call takes beyond its own time, because other programs run, is left out where the system tells it. What noise is
left adds as much to one way as to the other. So what counts are pairs of neighbouring calls, one of each way, and of
each pair only which of the two was faster: a random walk that ends at either of two bounds (a sequential probability
ratio test of signs). The way there is now needs no proof; the other one has to win clearly.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["RULES", "Contest", "Rules", "Taken", "Verdict"]


@dataclass(frozen=True, slots=True)
class Rules:
    """When the other way is tried, and when a contest ends.

    At most ``share`` of the time of the calls so far, and of ``calls`` calls while there were fewer, may be lost to the
    other way; its first call is feared to take ``doubted`` times as long as estimated. A pair is won if the other way
    took less than ``clearly`` times as long. The other way is taken as soon as it has ``wins`` more than it lost, and
    dropped at ``losses`` the other way round, or at once if the fastest of ``enough`` calls of it took ``slower`` times
    as long as the usual way does. After ``pairs`` pairs, or ``most`` calls, nothing changes. Calls of less than
    ``shortest`` seconds are not compared: to look at a clock would cost too much.
    """

    share: float = 0.02
    calls: int = 100
    doubted: float = 3.0
    clearly: float = 0.95
    wins: int = 6
    losses: int = 4
    slower: float = 1.2
    enough: int = 3
    pairs: int = 40
    most: int = 2000
    shortest: float = 50e-6


RULES = Rules()
"""The rules by which graphs are compared."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The seconds of one call, and those of them in which its thread ran; ``waited``: the others were not all of them
    given to other programs, some it waited for something.
    """

    seconds: float
    busy: float
    waited: bool = False

    @property
    def own(self) -> float:
        """Seconds without what was given to other programs, where that is known."""
        return self.seconds if self.waited else self.busy


@dataclass(frozen=True, slots=True)
class Verdict:
    """``other`` says whether the other way is to be taken, ``sure`` whether a later process may rely on it."""

    other: bool
    reason: str
    sure: bool = True


class Contest:
    """What the calls so far say. It knows neither the two ways nor a clock."""

    def __init__(self, rules: Rules = RULES) -> None:
        self.rules = rules
        self.usual: list[Taken] = []
        """The calls of the usual way."""
        self.other: list[Taken] = []
        """The calls of the other way that are half of a pair."""
        self.first: Taken | None = None
        """The first call of the other way."""
        self.looks = 0.0
        """Seconds that looking at the clock took, and finding out where a backward ends."""
        self.foreseen = 0.0
        """Seconds that estimates give for the first call of the other way."""
        self.score = 0

    @property
    def usual_median(self) -> float:
        """Median seconds of the usual way; 0 if it was not timed."""
        return _median(call.own for call in self.usual)

    @property
    def other_median(self) -> float:
        """Median seconds of the other way; 0 if it was not timed."""
        return _median(call.own for call in self.other)

    @property
    def lost(self) -> float:
        """Seconds that the contest has cost."""
        usual = _median(call.busy for call in self.usual)
        tried = self.other if self.first is None else [self.first, *self.other]
        return sum(call.busy - usual for call in tried) + self.looks

    def affordable(self) -> int:
        """After how many calls in all the other way may have the next one, by what was lost so far."""
        usual = max(_median(call.busy for call in self.usual), 1e-9)
        expected = _median(call.busy for call in self.other)
        if not expected:
            expected = self.rules.doubted * self.foreseen if self.first is None else self.first.busy
        calls = math.ceil((self.lost + max(0.0, expected - usual)) / (self.rules.share * usual) - 1e-6)
        return 0 if calls <= self.rules.calls else calls

    def settled(self, call: Taken) -> Verdict | None:
        """Note a call of the usual way by itself."""
        self.usual.append(call)
        if len(self.usual) < self.rules.enough or self.usual_median >= self.rules.shortest:
            return None
        short = f"calls of {1e6 * self.usual_median:.0f} us are too short to be timed in turns"
        return Verdict(False, short, sure=False)

    def warmed(self, call: Taken) -> None:
        """Note the first call of the other way, which does not count: it finds nothing prepared."""
        self.first = call

    def pair(self, usual: Taken, other: Taken, calls: int) -> Verdict | None:
        """Note two neighbouring calls, the last of ``calls`` in all; the verdict, if that is enough."""
        rules = self.rules
        self.usual.append(usual)
        self.other.append(other)
        waited = usual.waited or other.waited
        won = other.seconds < rules.clearly * usual.seconds if waited else other.busy < rules.clearly * usual.busy
        self.score += 1 if won else -1
        if self.score >= rules.wins:
            return Verdict(True, self._said("eager is faster"))
        least = min(call.own for call in self.other)
        if len(self.other) >= rules.enough and least > rules.slower * self.usual_median:
            return Verdict(False, self._said("eager is slower"))
        if self.score <= -rules.losses:
            return Verdict(False, self._said("eager is not clearly faster"))
        if len(self.other) >= rules.pairs:
            return Verdict(False, self._said("neither is clearly faster"))
        if calls >= rules.most:
            return Verdict(False, self._said(f"{calls} calls did not tell"), sure=False)
        return None

    def too_dear(self) -> Verdict:
        """The verdict where the next call of the other way may not be made for too long."""
        return Verdict(False, self._said(f"{self.rules.most} calls do not pay for another one of eager's"), sure=False)

    def _said(self, what: str) -> str:
        times = f"{1e6 * self.other_median:.0f} us against {1e6 * self.usual_median:.0f}"
        return f"{what}: {times}, medians of {len(self.other)} calls in turns"


def _median(seconds: Iterable[float]) -> float:
    found = list(seconds)
    return statistics.median(found) if found else 0.0
