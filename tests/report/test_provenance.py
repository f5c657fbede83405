"""What is compiled can be followed to Python: `python -m benchmarks.provenance` on thirty models, here on four."""

from __future__ import annotations

import re
from typing import Any

import pytest

from benchmarks.provenance import GOALS, counted, measured, models
from tests.report.programs import link_pairs

_STATEMENT = re.compile(r"const \w+ v\d+(?:_\d+)? = .*// (div|mul|add|sub|exp|tanh|not|le|cast)$")


@pytest.fixture(scope="module", params=["attention", "diffusion", "standardised", "written"])
def report(request: pytest.FixtureRequest) -> dict[str, Any]:
    module, inputs = next((module, inputs) for name, module, inputs in models() if name == request.param)
    return measured(module, inputs)


def test_nothing_is_lost(report: dict[str, Any]) -> None:
    assert report["faults"] == []
    totals, lost = counted(report)
    assert lost == []
    assert all(totals[level][1] > 0 for level in GOALS)


def test_statements_lead_to_the_equations_that_they_compute(report: dict[str, Any]) -> None:
    texts = report["texts"]
    above: dict[tuple[int, int], list[str]] = {}
    for upper, line, lower, other in link_pairs(report):
        above.setdefault((lower, other), []).append(texts[upper]["text"].split("\n")[line - 1])
    checked = 0
    for number, text in enumerate(texts):
        for line, code in enumerate(text["text"].split("\n") if text["level"] == "kernel" else (), 1):
            match = _STATEMENT.search(code)
            if match:
                checked += 1
                assert any(f"'{match[1]}'" in one or "Reduce(" in one for one in above[number, line]), code
    assert checked


def test_every_boundary_has_a_reason_with_a_code(report: dict[str, Any]) -> None:
    edges = [edge for region in report["regions"] for one in region["fusion"].values() for edge in one["edges"]]
    assert all(edge["code"] for edge in edges), edges
