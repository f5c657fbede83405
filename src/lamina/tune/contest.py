"""Two ways to compute the same thing, compared call by call: a sequential test whose own cost has a limit.

Noise only adds to a time, and adds as much to one way as to the other. So what counts are pairs of neighbouring calls,
one of each way, and of each pair only which of the two was faster: a random walk that ends at either of two bounds
(a sequential probability ratio test of signs). The way there is now needs no proof; the other one has to win clearly.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["RULES", "Contest", "Rules", "Verdict"]


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
    doubted: float = 1.5
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
class Verdict:
    """``other`` says whether the other way is to be taken, ``sure`` whether a later process may rely on it."""

    other: bool
    reason: str
    sure: bool = True


class Contest:
    """What the calls so far say. It knows neither the two ways nor a clock."""

    def __init__(self, rules: Rules = RULES) -> None:
        self.rules = rules
        self.usual: list[float] = []
        """Seconds of the calls of the usual way."""
        self.other: list[float] = []
        """Seconds of the calls of the other way that are half of a pair."""
        self.lost = 0.0
        """Seconds by which calls of the other way, the first one included, took longer than the usual way's, and those
        that looking at the clock took."""
        self.score = 0
        self.foreseen = 0.0
        """Seconds that estimates give for the first call of the other way."""
        self.seen = 0.0
        """Seconds that it took."""

    @property
    def usual_median(self) -> float:
        """Median seconds of the usual way; 0 if it was not timed."""
        return _median(self.usual)

    @property
    def other_median(self) -> float:
        """Median seconds of the other way; 0 if it was not timed."""
        return _median(self.other)

    def affordable(self) -> int:
        """After how many calls in all the other way may have the next one, by what was lost so far."""
        expected = self.other_median or self.seen or self.rules.doubted * self.foreseen
        lost = self.lost + max(0.0, expected - self.usual_median)
        calls = math.ceil(lost / (self.rules.share * max(self.usual_median, 1e-9)))
        return 0 if calls <= self.rules.calls else calls

    def settled(self, seconds: float) -> Verdict | None:
        """Note a call of the usual way by itself."""
        self.usual.append(seconds)
        if len(self.usual) < self.rules.enough or self.usual_median >= self.rules.shortest:
            return None
        short = f"calls of {1e6 * self.usual_median:.0f} us are too short to be timed in turns"
        return Verdict(False, short, sure=False)

    def warmed(self, seconds: float) -> None:
        """Note the first call of the other way, which does not count: it finds nothing prepared."""
        self.lost += seconds - self.usual_median
        self.seen = seconds

    def pair(self, usual: float, other: float, calls: int) -> Verdict | None:
        """Note two neighbouring calls, the last of ``calls`` in all; the verdict, if that is enough."""
        rules = self.rules
        self.usual.append(usual)
        self.other.append(other)
        self.lost += other - usual
        self.score += 1 if other < rules.clearly * usual else -1
        if self.score >= rules.wins:
            return Verdict(True, self._said("eager is faster"))
        least = min(self.other)
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


def _median(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) if seconds else 0.0
