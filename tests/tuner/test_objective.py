from __future__ import annotations

import pytest

from lamina.errors import BadArgument
from lamina.tuner.objective import Limit, Objective, parse_objective


def test_text_becomes_an_objective() -> None:
    found = parse_objective("throughput, latency<=5ms, memory<=8GB, error<=1e-3")
    limits = (Limit("latency", 5e-3), Limit("memory", 8e9), Limit("error", 1e-3))
    assert found == Objective("throughput", limits)
    assert found.error == 1e-3
    assert parse_objective("latency") == Objective()
    assert parse_objective("memory, p99 <= 20 us").limits == (Limit("p99", pytest.approx(2e-5)),)
    assert parse_objective("throughput>=100").limits == (Limit("throughput", 100.0),)


@pytest.mark.parametrize(
    "text", ["latency<=5ms", "p99<=20us", "build<=2min", "memory<=8GB", "memory<=3MiB", "error<=1e-3"]
)
def test_text_of_an_objective_is_one(text: str) -> None:
    found = parse_objective(f"memory, {text}, throughput>=1.5e6")
    again = parse_objective(str(found))
    assert again.metric == found.metric
    assert [limit.quantity for limit in again.limits] == [limit.quantity for limit in found.limits]
    assert [limit.value for limit in again.limits] == [pytest.approx(limit.value, rel=1e-11) for limit in found.limits]
    assert str(again) == str(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("speed", "no metric"),
        ("latency, memory", "two metrics"),
        ("latency<=5", "no unit"),
        ("latency<=5GB", "unit 'GB'"),
        ("latency>=5ms", "wrong side"),
        ("size<=5", "nothing is known of 'size'"),
        ("error<=1e-3, error<=1e-2", "twice"),
        ("error<=1-3", "no number"),
    ],
)
def test_what_is_no_objective_is_said(text: str, said: str) -> None:
    with pytest.raises(BadArgument, match=said):
        parse_objective(text)
