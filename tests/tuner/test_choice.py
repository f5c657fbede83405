from __future__ import annotations

import json

import pytest

from lamina.errors import BadArgument
from lamina.tuner.choice import choose, pareto
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
