"""The values that the steps of tuning pass on: candidates, figures, rows. All of them are plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["CHOOSABLE", "EAGER", "VERDICTS", "Candidate", "Figures", "Interval", "Part", "Row", "mix_of", "parts_in"]

VERDICTS = {
    "baseline": "eager itself",
    "faster": "right, and faster than eager beyond noise",
    "tie": "right, and not to be told from eager",
    "slower": "right, and slower than eager beyond noise",
    "refused": "it gives something else than eager",
    "failed": "it raised an exception",
    "crashed": "its process ended",
    "hung": "it took longer than its time limit",
    "out of memory": "it took more memory than its limit, or than there is",
    "unavailable": "a package or device that it needs is not there",
    "not tried": "the budget was spent before",
}
"""What can become of a candidate."""

CHOOSABLE = ("baseline", "faster", "tie", "slower")
"""Verdicts of rows that were verified and timed."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to run a model, as plain data.

    ``kind`` names a builder in ``building.py``, ``settings`` are its arguments. Among ties the smaller ``cost`` wins:
    how much stands between the model and the user's code. ``lossy``: it computes in fewer bits than eager, and is tried
    only where the user allows an error or has a metric. ``modules``: the submodules it replaces, empty for the whole.
    """

    name: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    cost: int = 1
    lossy: bool = False
    modules: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data for a journal or file."""
        return {
            "name": self.name,
            "kind": self.kind,
            "settings": dict(self.settings),
            "cost": self.cost,
            "lossy": self.lossy,
            "modules": list(self.modules),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Candidate:
        """The candidate that ``to_json`` gave."""
        return cls(**{**data, "modules": tuple(data["modules"])})


EAGER = Candidate("eager", "eager", cost=0)
"""The model as it is."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio of times, eager's over the candidate's, with the interval that it lies in."""

    middle: float
    low: float
    high: float

    @property
    def deviation(self) -> float:
        """How far from 1 the interval reaches."""
        return max(abs(self.high - 1.0), abs(1.0 - self.low))

    def __str__(self) -> str:
        return f"{self.middle:.2f}x ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of a candidate that is right.

    ``p50``, ``p99`` and ``mean`` are seconds per call over ``samples`` samples, ``baseline`` eager's median in the same
    turns, ``speedup`` the ratio of the two, ``noise`` how far eager against itself was from 1 in those turns.
    ``throughput`` is rows of the leading axis per second. ``peak_memory``, in bytes, is that of parameters and buffers
    and of one call beyond; None where it cannot be told. ``load_seconds``: until the candidate could be called,
    ``build_seconds``: until its first call had returned. ``error`` is the largest distance from double precision, as a
    fraction of the largest element; ``drop`` by how much the user's metric is below eager's.
    """

    p50: float
    p99: float
    mean: float
    baseline: float
    speedup: Interval
    noise: float
    samples: int
    throughput: float
    peak_memory: float | None
    build_seconds: float
    load_seconds: float
    error: float
    drop: float | None = None
    timings: tuple[float, ...] = ()
    baseline_timings: tuple[float, ...] = ()

    def flaw(self) -> str:
        """A figure that cannot have been measured, in words; "" if all can."""
        times = {"p50": self.p50, "p99": self.p99, "mean": self.mean, "baseline": self.baseline}
        ratio = self.speedup
        times |= {"speedup": ratio.middle, "low": ratio.low, "high": ratio.high}
        rest = {"throughput": self.throughput, "noise": self.noise, "error": self.error}
        rest |= {"build": self.build_seconds, "load": self.load_seconds}
        rest |= {name: n for name, n in (("memory", self.peak_memory), ("drop", self.drop)) if n is not None}
        for name, number in (times | rest).items():
            if isinstance(number, bool) or not isinstance(number, (int, float)) or number != number:
                return f"{name} is {number!r}"
        wrong = [name for name, number in times.items() if not 0.0 < number < math.inf]
        return f"{wrong[0]} is {times[wrong[0]]!r}" if wrong else ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Figures:
        """The figures that ``Row.to_json`` wrote."""
        return cls(
            **{
                **data,
                "speedup": Interval(**data["speedup"]),
                "timings": tuple(data["timings"]),
                "baseline_timings": tuple(data["baseline_timings"]),
            }
        )


@dataclass(frozen=True, slots=True)
class Part:
    """Modules of a model that are tuned alike, by path, and their share of the time of one call."""

    modules: tuple[str, ...]
    share: float

    def __str__(self) -> str:
        return self.modules[0] + (f" and {len(self.modules) - 1} alike" if len(self.modules) > 1 else "")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Part:
        """The part that ``asdict`` gave."""
        return cls(tuple(data["modules"]), data["share"])


@dataclass(frozen=True, slots=True)
class Row:
    """What became of a candidate: one of ``VERDICTS``, the reason in words, figures if it was timed, its last lines.

    Eager's row has the ``parts`` of the model that are worth candidates of their own, and whether a call ``draws``
    random numbers. ``limit`` is what a candidate was given that hung, in seconds, or ran out of memory, in bytes: with
    more it may be right. ``against``: other candidates by name that it was timed with in one process, and its verdict.
    """

    candidate: Candidate
    verdict: str
    reason: str = ""
    figures: Figures | None = None
    log: tuple[str, ...] = ()
    seconds: float = 0.0
    parts: tuple[Part, ...] = ()
    limit: float = 0.0
    draws: bool = False
    against: tuple[tuple[str, str], ...] = ()

    def flaw(self) -> str:
        """What cannot be in a row that was measured, "" if all of it can: for rows that are read from files."""
        if self.verdict not in VERDICTS:
            return f"the verdict {self.verdict!r}"
        if self.figures is None and self.verdict in CHOOSABLE:
            return f"the verdict {self.verdict!r} without figures"
        return "" if self.figures is None else self.figures.flaw()

    def to_json(self) -> dict[str, Any]:
        """Plain data for a journal or file."""
        return {
            "candidate": self.candidate.to_json(),
            "verdict": self.verdict,
            "reason": self.reason,
            "figures": None if self.figures is None else asdict(self.figures),
            "log": list(self.log),
            "seconds": self.seconds,
            "parts": [asdict(part) for part in self.parts],
            "limit": self.limit,
            "draws": self.draws,
            "against": [list(pair) for pair in self.against],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Row:
        """The row that ``to_json`` gave."""
        figures = data["figures"]
        return cls(
            Candidate.from_json(data["candidate"]),
            data["verdict"],
            data["reason"],
            None if figures is None else Figures.from_json(figures),
            tuple(data["log"]),
            data["seconds"],
            tuple(map(Part.from_json, data.get("parts", ()))),
            data.get("limit", 0.0),
            data.get("draws", False),
            tuple((name, verdict) for name, verdict in data.get("against", ())),
        )


def mix_of(parts: Mapping[Part, Candidate]) -> Candidate:
    """The candidate that runs each part as the candidate beside it says, and the rest as it is."""
    told = [{"modules": list(part.modules), "candidate": inner.to_json()} for part, inner in parts.items()]
    return Candidate(
        "; ".join(f"{part}: {inner.name}" for part, inner in parts.items()),
        "mix",
        {"parts": told},
        max(inner.cost for inner in parts.values()) + len(parts),
        any(inner.lossy for inner in parts.values()),
        tuple(name for part in parts for name in part.modules),
    )


def parts_in(candidate: Candidate) -> tuple[tuple[tuple[str, ...], Candidate], ...]:
    """The modules of each part of a mix, with the candidate that runs them; nothing for other candidates."""
    if candidate.kind != "mix":
        return ()
    return tuple((tuple(p["modules"]), Candidate.from_json(p["candidate"])) for p in candidate.settings["parts"])
