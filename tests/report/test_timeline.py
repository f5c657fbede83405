"""Stages as spans: what runs in the background stands apart from what the program waits for."""

from __future__ import annotations

from lamina.record import Record, Stage
from lamina.report.timeline import chrome_trace, spans


def _record(*stages: tuple[str, float, float]) -> Record:
    record = Record("made")
    for name, started, seconds in stages:
        record.stages.append(Stage("a", name, None, seconds, ended=started + seconds))
    return record


def test_what_is_built_beside_has_lanes_of_its_own() -> None:
    record = _record(
        ("capture", 0.0, 1.0),
        ("aot", 1.0, 2.0),
        ("pass", 1.5, 0.5),
        ("build", 3.0, 2.0),
        ("wait", 3.1, 2.0),
        ("build chosen", 3.5, 3.0),
    )
    found = {span["name"]: (span["lane"], span["depth"]) for span in spans(record)}
    assert found == {
        "capture": (0, 0),
        "aot": (0, 0),
        "pass": (0, 1),
        "wait": (0, 0),
        "build": (1, 0),
        "build chosen": (2, 0),
    }
    events = {event["cat"]: event["tid"] for event in chrome_trace(record)["traceEvents"] if "cat" in event}
    assert events["wait"] == 0
    assert events["build"] == 1


def test_builds_alone() -> None:
    assert [span["lane"] for span in spans(_record(("build", 0.0, 1.0)))] == [0]
    assert spans(_record()) == []
