"""Measured times of a report's kernels, and how near they come to what the machine can do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from statistics import median
from typing import Any

from lamina.base.decision import Decision
from lamina.peaks import measured_peaks
from lamina.record import Record
from lamina.report.recording import Recording

__all__ = ["add_times"]


def add_times(record: Record, kernels: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Give kernels, by name, their ``seconds``, ``runs`` and ``share``; the peaks of each device that ran some.

    Seconds are the median of the program's own launches where the record had them timed, of the tuner's trials
    elsewhere. ``share`` is that of the least time in which the bytes or the operations of a launch could be done.
    """
    measured: dict[str, list[float]] = {}
    for own in record.launches.values() if isinstance(record, Recording) else ():
        for name, every in own.items():
            measured.setdefault(name, []).extend(every)
    devices = dict.fromkeys(kernel["device"] for name, kernel in kernels.items() if measured.get(name))
    peaks = {device: measured_peaks("cuda" if device == "gpu" else device) for device in devices}
    tuned = _tuned(record.decisions("candidate"))
    bounds = {d.subject[0]: dict(d.facts).get("bound_us") for d in record.decisions("tune") if d.subject}
    for name, kernel in kernels.items():
        if measured.get(name):
            seconds, runs = median(measured[name]), len(measured[name])
            bound = peaks[kernel["device"]].bound(kernel["bytes"], kernel["flops"])
        elif name in tuned:
            (seconds, runs), least = tuned[name], bounds.get(name)
            bound = float(least) * 1e-6 if isinstance(least, int | float) else 0.0
        else:
            continue
        kernel |= {"seconds": seconds, "runs": runs, **({"share": round(bound / seconds, 4)} if bound else {})}
    return {device: asdict(one) for device, one in peaks.items()}


def _tuned(candidates: Iterable[Decision]) -> dict[str, tuple[float, int]]:
    """Seconds and samples of the candidate that was chosen for each kernel, where it was timed."""
    found = {}
    for decision in candidates:
        facts = dict(decision.facts)
        if decision.taken and "us" in facts:
            found[str(decision.subject[0])] = (float(facts["us"]) * 1e-6, int(facts.get("samples", 1)))
    return found
