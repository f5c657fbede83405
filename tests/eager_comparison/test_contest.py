from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from lamina.eager_comparison.contest import RULES, Contest, Taken, Verdict

Noise = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Played:
    """How a contest ended, the calls of each way, and seconds lost to the other way in all and in the first hundred."""

    verdict: Verdict | None
    calls: int
    others: int
    lost: float


def played(usual: float, other: float, noise: Noise, first: float = 1.0, calls: int = 3000) -> Played:
    """A contest of calls that take ``usual`` and ``other`` seconds and what noise adds, ``first`` times the first."""
    contest = Contest()
    lost = 0.0
    others = 0
    warm = False
    pair: list[Taken] = []

    def taken(seconds: float) -> Taken:
        return Taken(seconds + noise() * seconds, seconds, waited=True)

    for call in range(1, calls + 1):
        verdict: Verdict | None = None
        if len(contest.usual) < RULES.enough:
            verdict = contest.settled(taken(usual))
        elif not pair and contest.affordable() > call:
            continue
        elif not warm or pair:
            call_of_other = taken(other * (1.0 if warm else first))
            lost += (other * (1.0 if warm else first) - usual) if call <= 100 else 0.0
            others += 1
            if not warm:
                contest.warmed(call_of_other)
                warm = True
            else:
                verdict = contest.pair(pair.pop(), call_of_other, call)
        else:
            pair.append(taken(usual))
        if verdict is not None:
            return Played(verdict, call, others, lost)
    return Played(None, calls, others, lost)


def load(seed: int) -> Noise:
    """What other programs add: mostly little, and in one call of seven much."""
    draw = random.Random(seed)
    return lambda: draw.random() * 0.05 + (draw.random() < 1 / 7) * draw.random() * 3


@pytest.mark.parametrize("seed", range(100))
def test_the_faster_way_wins_whatever_else_the_machine_does(seed: int) -> None:
    better = played(1e-3, 0.6e-3, load(seed)).verdict
    worse = played(1e-3, 1.5e-3, load(seed)).verdict
    assert better is not None
    assert better.other
    assert worse is None or not worse.other


@pytest.mark.parametrize("times", [1.02, 1.2, 1.5, 2.0, 2.9])
@pytest.mark.parametrize("first", [1.0, 1.2])
def test_a_slower_way_loses_two_percent_of_the_first_hundred_calls_at_most(times: float, first: float) -> None:
    result = played(1e-3, times * 1e-3, lambda: 0.0, first)
    dear = max(0.0, first * times - 1)  # only the first call can be dearer than was foreseen
    assert result.verdict is not None
    assert not result.verdict.other
    assert result.verdict.sure
    assert result.lost <= max(RULES.share * 100, dear) * 1e-3 * 1.0001


def test_a_tie_is_the_compiled_graphs() -> None:
    won = sum((v := played(1e-3, 1e-3, load(seed)).verdict) is not None and v.other for seed in range(200))
    assert won <= 20
    exact = played(1e-3, 1e-3, lambda: 0.0).verdict
    assert exact is not None
    assert not exact.other


def undisturbed(seconds: float) -> Taken:
    return Taken(seconds, seconds)


def test_the_first_call_of_the_other_way_waits_until_it_is_paid_for() -> None:
    contest = Contest()
    for _ in range(RULES.enough):
        assert contest.settled(undisturbed(1e-3)) is None
    assert contest.affordable() == 0
    contest.foreseen = 3e-3
    assert contest.affordable() == pytest.approx((3 * RULES.doubted - 1) / RULES.share, abs=1)
    contest.warmed(undisturbed(2e-3))
    assert contest.affordable() == 0
    contest.pair(undisturbed(1e-3), undisturbed(2e-3), 10)
    assert contest.lost == pytest.approx(2e-3)
    assert contest.affordable() == pytest.approx(3 / RULES.share, abs=1)


def test_calls_that_a_clock_would_disturb_are_not_compared() -> None:
    contest = Contest()
    verdicts = [contest.settled(undisturbed(RULES.shortest / 2)) for _ in range(RULES.enough)]
    assert verdicts[:-1] == [None] * (RULES.enough - 1)
    assert verdicts[-1] is not None
    assert not verdicts[-1].other
    assert not verdicts[-1].sure


def test_a_contest_ends_undecided() -> None:
    contest = Contest(replace(RULES, wins=100, losses=100, slower=100.0))
    for number in range(RULES.pairs):
        verdict = contest.pair(undisturbed(1e-3), undisturbed(0.9e-3 if number % 2 else 1.1e-3), 0)
    assert verdict is not None
    assert not verdict.other
    late = Contest(replace(RULES, wins=100)).pair(undisturbed(1e-3), undisturbed(0.5e-3), RULES.most)
    assert late is not None
    assert not late.sure
    assert not Contest().too_dear().sure


def test_what_other_programs_take_is_no_loss() -> None:
    contest = Contest()
    for _ in range(RULES.enough):
        contest.settled(Taken(5e-3, 1e-3))
    contest.warmed(Taken(50e-3, 1e-3))
    assert contest.lost == pytest.approx(0.0)
    assert contest.affordable() == 0
    contest.looks += 3e-3
    assert contest.affordable() == pytest.approx(3 / RULES.share)


def test_what_was_given_to_other_programs_does_not_decide() -> None:
    contest = Contest()
    draw = random.Random(0)
    for _ in range(RULES.wins):
        verdict = contest.pair(Taken(draw.random() + 1e-3, 1e-3), Taken(draw.random() + 1e-3, 0.8e-3), 0)
    assert verdict is not None
    assert verdict.other
    waiting = Contest()
    for _ in range(RULES.losses):
        verdict = waiting.pair(Taken(2e-3, 1e-3), Taken(3e-3, 0.8e-3, waited=True), 0)
    assert verdict is not None
    assert not verdict.other
