"""The committed figures of reports: what can be followed to Python, what has a reason, how fast the page is."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.provenance import GOALS, models
from benchmarks.report import RESULTS
from benchmarks.report_page import goals_missed


def committed(name: str) -> dict[str, Any]:
    return dict(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")))


def test_of_provenance() -> None:
    found = committed("provenance")
    assert len(found["models"]) == 30
    assert set(found["models"]) == {name for name, _, _ in models()}
    for level, goal in GOALS.items():
        reached, there = found["totals"][level]
        assert there > 100
        assert reached / there >= goal


def test_of_reasons() -> None:
    found = committed("reasons")
    assert len(found["models"]) == 30
    assert found["without_reason"] == []
    assert min(found["totals"].values()) > 100


def test_of_the_page() -> None:
    found = committed("report_page")
    assert found["lines"] == 200_000
    assert found["links"] == 500
    assert goals_missed(found) == []


def test_what_is_missed_is_said() -> None:
    found = committed("report_page") | {"bytes": 7_000_000, "requests": ["https://a.b/c"]}
    assert goals_missed(found) == ["bytes is 7000000, at most 6000000", "requests: ['https://a.b/c']"]
