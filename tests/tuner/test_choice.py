from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from lamina.errors import BadArgument
from lamina.tuner.choice import CLEARLY, choose, contest, majority, pareto, slight, unsure
from lamina.tuner.objective import parse_objective
from lamina.tuner.values import EAGER, Candidate, Figures, Interval, Row


def row(name: str, verdict: str, speed: float, *, cost: int = 2, memory: float = 100.0, error: float = 0.0) -> Row:
    speedup = Interval(speed, speed * 0.99, speed * 1.01)
    figures = Figures(0.01 / speed, 0.02, 0.01, 0.01, speedup, 0.005, 50, speed * 800, memory, 3.0, 0.1, error)
    return Row(EAGER if name == "eager" else Candidate(name, "import", {}, cost), verdict, "", figures)


BASE = row("eager", "baseline", 1.0)


def named(rows: list[Row], objective: str) -> str:
    return choose(rows, parse_objective(objective)).candidate.name


def test_a_tie_goes_to_the_simpler() -> None:
    assert named([BASE, row("lucky", "tie", 1.5)], "latency") == "eager"
    assert named([BASE, row("a", "faster", 1.5, cost=3), row("b", "faster", 1.49, cost=2)], "latency") == "b"
    assert named([BASE, row("a", "faster", 1.5, cost=3), row("b", "faster", 1.2, cost=2)], "latency") == "a"
    assert named([BASE, row("a", "faster", 1.03)], "latency") == "a"


def test_what_may_be_as_fast_and_is_simpler_is_held_against_the_fastest() -> None:
    def rivals(*rows: Row, objective: str = "latency") -> list[str]:
        found = contest([BASE, *rows], parse_objective(objective))
        return [row.candidate.name for row in found or ()]

    best, near = row("best", "faster", 6.3, cost=3), row("near", "faster", 5.2)
    assert rivals(best, near) == ["best", "near"]
    assert rivals(best, row("far", "faster", 4.0)) == []
    assert rivals(best, row("less", "faster", 5.2, cost=4)) == []
    assert rivals(best, row("tie", "tie", 6.2)) == []
    assert rivals(best, row("same", "faster", 6.29)) == ["best", "same"]
    assert rivals(row("first", "faster", 6.3), row("second", "faster", 5.2)) == []  # which would have to be faster
    assert rivals(row("first", "faster", 5.2), row("second", "faster", 6.3)) == ["second", "first"]
    assert rivals(best, near, objective="memory") == []
    assert rivals(best, near, objective="latency, latency<=1us") == []
    for verdict, taken in (("tie", "near"), ("slower", "near"), ("faster", "best")):
        settled = replace(best, against=(("near", verdict),))
        assert named([BASE, settled, near], "latency") == taken
        assert rivals(settled, near) == []
        assert Row.from_json(json.loads(json.dumps(settled.to_json()))) == settled


def test_small_gains_are_for_other_processes_to_confirm() -> None:
    def weak(*rows: Row, objective: str = "latency") -> list[str]:
        return [row.candidate.name for row in slight([BASE, *rows], parse_objective(objective))]

    small, perhaps = row("small", "faster", 1.015), row("perhaps", "tie", 1.05)
    assert weak(small, perhaps, row("no", "tie", 1.01), row("slower", "slower", 1.05)) == ["small", "perhaps"]
    assert weak(small, perhaps, row("best", "faster", 1.2)) == ["small", "perhaps"]
    assert weak(small, perhaps, row("best", "faster", 2.0)) == []
    assert weak(row("clear", "faster", 1.0 + CLEARLY)) == []
    assert weak(small, objective="memory") == []


def test_most_of_the_processes_decide() -> None:
    rows = [row("a", "faster", 1.05), row("a", "tie", 1.01), row("a", "faster", 1.03)]
    found = majority(rows)
    assert (found.verdict, found.figures) == ("faster", rows[2].figures)
    found = majority([rows[1], rows[0], row("a", "tie", 1.02)])
    assert (found.verdict, found.reason) == ("tie", "faster in 1 of 3 processes")
    assert majority([rows[0], Row(rows[0].candidate, "not tried")]) == rows[0]
    for verdict in ("refused", "crashed", "out of memory", "hung"):
        failed = Row(rows[0].candidate, verdict, "why")
        assert majority([rows[0], rows[2], failed]) == failed
        assert majority([rows[0], failed, Row(rows[0].candidate, "not tried")]) == failed
    assert majority([row("a", "slower", 0.9), rows[1], row("a", "slower", 0.95)]).verdict == "slower"


def test_only_ratios_near_the_margin_are_unsure() -> None:
    figures = [row("a", "tie", speed).figures for speed in (1.0, 1.06, 1.0 + CLEARLY, 1.14, 1.3)]
    assert [found is not None and unsure(found) for found in figures] == [False, True, True, True, False]


def test_wrong_rows_are_never_chosen() -> None:
    wrong = Row(Candidate("wrong", "import"), "refused", "", row("x", "faster", 9.0).figures)
    assert named([BASE, wrong], "latency") == "eager"


def test_limits_are_kept_or_refused() -> None:
    rows = [BASE, row("fast", "faster", 2.0, memory=500.0, error=1e-2), row("lean", "tie", 1.0, memory=50.0)]
    assert named(rows, "latency") == "fast"
    assert named(rows, "latency, error<=1e-3") == "eager"
    assert named(rows, "memory") == "lean"
    assert named(rows, "memory, latency<=6ms") == "fast"
    with pytest.raises(BadArgument, match="no candidate keeps the limits"):
        named(rows, "latency<=1us")


def test_the_front_leaves_out_what_is_beaten() -> None:
    rows = [BASE, row("fast", "faster", 2.0, memory=500.0), row("worse", "faster", 1.5, memory=600.0)]
    assert [r.candidate.name for r in pareto(rows)] == ["eager", "fast"]


def test_rows_are_plain_data() -> None:
    given = row("fast", "faster", 2.0)
    assert Row.from_json(json.loads(json.dumps(given.to_json()))) == given


def tuned(truth: dict[str, tuple[int, float]], drawn: random.Random) -> str:
    """The choice of one run, in which a candidate's own process makes it up to a fifth slower, and a race of two in one
    process is right to a fiftieth.
    """
    rows = [BASE]
    for name, (cost, speed) in truth.items():
        here = speed * (1.0 - abs(drawn.gauss(0.0, 0.08)))
        verdict = "faster" if here * drawn.gauss(1.0, 0.005) > 1.02 else "tie"
        rows.append(row(name, verdict, here, cost=cost))
    goal = parse_objective("latency")
    while (pair := contest(rows, goal)) is not None:
        better, simpler = pair
        ratio = truth[better.candidate.name][1] / truth[simpler.candidate.name][1] * drawn.gauss(1.0, 0.01)
        found = (simpler.candidate.name, "faster" if ratio > 1.0 + CLEARLY + 0.01 else "tie")
        rows[rows.index(better)] = replace(better, against=(*better.against, found))
    return choose(rows, goal).candidate.name


def test_the_choice_repeats_though_processes_differ() -> None:
    """Of many sets of candidates, some with the same code twice, few have two choices: those near the margin."""
    drawn = random.Random(0)
    repeated = 0
    for _ in range(100):
        same, other = drawn.uniform(0.7, 6.0), drawn.uniform(0.7, 6.0)
        truth = {
            "a": (2, same),
            "b": (2, other),
            "a frozen": (3, same),
            "b tuned": (3, other * drawn.choice((1.0, 1.3))),
        }
        choices = Counter(tuned(truth, drawn) for _ in range(20))
        repeated += choices.most_common(1)[0][1] >= 19
    assert repeated >= 93
