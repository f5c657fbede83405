"""Worker processes that hang: a run ends at its time, and an operator at its limit."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from benchmarks.workers import Crew

WORKER = """
import json, sys, time
for name in sys.argv[1:]:
    print("START " + name, flush=True)
    if name.startswith("hangs"):
        time.sleep(5)
    print("RESULT " + json.dumps({"name": name, "status": "passed"}), flush=True)
"""
"""Notes a result even for what hangs, after a time: a run that waited for it has that result."""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER, encoding="utf-8")
    return [sys.executable, "-S", str(worker)]


def test_a_run_ends_at_its_time_though_an_operator_hangs(command: list[str]) -> None:
    crew = Crew(command, ["first", "hangs", "last"], chunk=3, limit=600.0, journal=None)
    results = crew.run(1, 0.6)
    assert "hangs" not in results  # the run's time was up, which says nothing of the operator
    assert "last" not in results


def test_an_operator_that_hangs_ends_at_its_limit_and_the_others_go_on(command: list[str]) -> None:
    crew = Crew(command, ["first", "hangs", "last"], chunk=3, limit=1.0, journal=None)
    results = crew.run(1, math.inf)
    assert {name: result.status for name, result in results.items()} == {
        "first": "passed",
        "hangs": "timeout",
        "last": "passed",
    }
