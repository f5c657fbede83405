"""The time that compiling took: stages as spans, and the same as a trace for Chrome and Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lamina.record import Record, Stage

__all__ = ["chrome_trace", "spans"]

_MICROSECONDS = 1e6
"""In a second."""
_BACKGROUND = "build"
"""What begins the names of stages that run beside the others."""


def spans(record: Record) -> list[dict[str, Any]]:
    """A span for each stage that took time, in microseconds since the first began.

    ``lane`` tells spans that overlap without one holding the other from each other. What is built in the background has
    lanes after those of the stages that the program waits for.
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
    beside = [span for span in found if span["name"].startswith(_BACKGROUND)]
    used = _put_in_lanes([span for span in found if not span["name"].startswith(_BACKGROUND)], 0)
    _put_in_lanes(beside, used)
    return found


def _put_in_lanes(found: Sequence[dict[str, Any]], first: int) -> int:
    """The lane, from ``first`` on, and within it how many spans hold each one; gives the lane after those."""
    lanes: list[list[int]] = []
    for span in found:
        end = span["start"] + span["length"]
        for number, open_until in enumerate(lanes):
            while open_until and open_until[-1] <= span["start"]:
                open_until.pop()
            if not open_until or open_until[-1] >= end:
                span["lane"], span["depth"] = first + number, len(open_until)
                open_until.append(end)
                break
        else:
            span["lane"], span["depth"] = first + len(lanes), 0
            lanes.append([end])
    return first + len(lanes)


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
