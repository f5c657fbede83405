"""The time that compiling took: stages as spans, and the same as a trace for Chrome and Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lamina.record import Record, Stage

__all__ = ["chrome_trace", "spans"]

_MICROSECONDS = 1e6
"""In a second."""


def spans(record: Record) -> list[dict[str, Any]]:
    """A span for each stage that took time, in microseconds since the first began.

    ``lane`` tells spans that overlap without one holding the other, as builds in the background do, from each other.
    """
    timed = [(number, stage) for number, stage in enumerate(record.stages) if stage.seconds > 0]
    start = min((stage.ended - stage.seconds for _, stage in timed), default=0.0)
    found: list[dict[str, Any]] = [
        {
            "stage": number,
            "name": stage.name,
            "region": stage.region,
            "start": round((stage.ended - stage.seconds - start) * _MICROSECONDS),
            "length": max(1, round(stage.seconds * _MICROSECONDS)),
        }
        for number, stage in timed
    ]
    found.sort(key=lambda span: (span["start"], -span["length"]))
    _put_in_lanes(found)
    return found


def _put_in_lanes(found: Sequence[dict[str, Any]]) -> None:
    """The lane and, within it, how many spans hold each one."""
    lanes: list[list[int]] = []
    for span in found:
        end = span["start"] + span["length"]
        for number, open_until in enumerate(lanes):
            while open_until and open_until[-1] <= span["start"]:
                open_until.pop()
            if not open_until or open_until[-1] >= end:
                span["lane"], span["depth"] = number, len(open_until)
                open_until.append(end)
                break
        else:
            span["lane"], span["depth"] = len(lanes), 0
            lanes.append([end])


def chrome_trace(record: Record) -> dict[str, Any]:
    """The spans as trace events, which chrome://tracing and ui.perfetto.dev open."""
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": f"lamina: compiling {record.name}"}}
    ]
    for span in spans(record):
        stage: Stage = record.stages[span["stage"]]
        events.append(
            {
                "name": f"{span['name']} {span['region']}".strip(),
                "cat": span["name"],
                "ph": "X",
                "pid": 1,
                "tid": span["lane"],
                "ts": span["start"],
                "dur": span["length"],
                "args": {"region": stage.region, "decisions": len(stage.decisions)},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
