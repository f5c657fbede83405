"""What the user wants: the quantity to make best, and limits that a candidate must keep."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamina.errors import BadArgument

if TYPE_CHECKING:
    from lamina.tuner.values import Figures

__all__ = ["METRICS", "Limit", "Objective", "parse_objective"]

METRICS = ("latency", "throughput", "memory")

_UNITS = {
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0},
    "memory": {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
    "error": {"": 1.0},
    "throughput": {"": 1.0, "/s": 1.0},
}

_Get = Callable[["Figures"], "float | None"]
_QUANTITIES: dict[str, tuple[str, str, _Get]] = {
    "latency": ("time", "<=", lambda f: f.p50),
    "p99": ("time", "<=", lambda f: f.p99),
    "build": ("time", "<=", lambda f: f.build_seconds),
    "memory": ("memory", "<=", lambda f: f.peak_memory),
    "error": ("error", "<=", lambda f: f.error),
    "throughput": ("throughput", ">=", lambda f: f.throughput),
}
_SHOWN = {"time": ("s", "ms", "us"), "memory": ("GB", "MB", "KB", "B")}
"""Units that a figure is shown in, the largest first; those of others have none."""
_EXAMPLE = 'write one such as "throughput, latency<=5ms, memory<=8GB, error<=1e-3"'
_LIMIT = re.compile(r"(\w+)\s*(<=|>=)\s*([0-9.eE+-]+?)\s*([A-Za-zµ/]*)")


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound of one quantity in seconds, bytes, samples per second, or as a fraction of the largest element."""

    quantity: str
    value: float

    def __str__(self) -> str:
        kind, sign, _ = _QUANTITIES[self.quantity]
        return f"{self.quantity}{sign}{_with_unit(kind, self.value, 12)}"

    def broken_by(self, figures: Figures) -> str:
        """How ``figures`` break the limit, "" if they keep it. A figure that could not be taken breaks none."""
        kind, sign, get = _QUANTITIES[self.quantity]
        found = get(figures)
        if found is None or (found <= self.value if sign == "<=" else found >= self.value):
            return ""
        return f"{self.quantity} is {_with_unit(kind, found, 3)}, the limit is {self}"


@dataclass(frozen=True, slots=True)
class Objective:
    """The metric to make best, one of ``METRICS``, and the limits to keep."""

    metric: str = "latency"
    limits: tuple[Limit, ...] = ()

    @property
    def error(self) -> float | None:
        """The largest error that the user allows, as a fraction of a tensor's largest element; None: eager's own."""
        return next((limit.value for limit in self.limits if limit.quantity == "error"), None)

    def broken_by(self, figures: Figures) -> str:
        """The limits that ``figures`` break, in words; "" if none."""
        return "; ".join(filter(None, (limit.broken_by(figures) for limit in self.limits)))

    def __str__(self) -> str:
        return ", ".join([self.metric, *map(str, self.limits)])


def _with_unit(kind: str, value: float, digits: int) -> str:
    """A figure in the largest unit that it is one of at least, as ``parse_objective`` reads it."""
    units = _SHOWN.get(kind, ("",))
    unit = next((unit for unit in units if value >= _UNITS[kind][unit]), units[-1])
    return f"{value / _UNITS[kind][unit]:.{digits}g}{unit}"


def parse_objective(text: str | Objective) -> Objective:
    """An objective from text such as ``"throughput, latency<=5ms, memory<=8GB, error<=1e-3"``.

    Quantities: latency (the median), p99, build in s, ms or us; memory in B, KB, MB, GB (or KiB, MiB, GiB); error; and
    throughput>=N in samples per second. Raises ``BadArgument``.
    """
    if isinstance(text, Objective):
        return text
    if not isinstance(text, str):
        raise BadArgument(f"the objective is {text!r}", remedy=_EXAMPLE)
    metric, limits = "", []
    for part in filter(None, (p.strip() for p in text.split(","))):
        if part in METRICS:
            if metric:
                raise BadArgument(f"the objective names two metrics, {metric} and {part}", remedy="name one")
            metric = part
        else:
            limits.append(_limit(part))
    named = [limit.quantity for limit in limits]
    if len(set(named)) < len(named):
        raise BadArgument(f"the objective {text!r} limits one quantity twice", remedy="give each limit once")
    return Objective(metric or METRICS[0], tuple(limits))


def _limit(part: str) -> Limit:
    found = _LIMIT.fullmatch(part)
    if found is None:
        raise BadArgument(f"{part!r} is no metric and no limit", remedy=_EXAMPLE)
    quantity, sign, number, unit = found.groups()
    if quantity not in _QUANTITIES:
        raise BadArgument(f"nothing is known of {quantity!r}", remedy=f"use one of {', '.join(_QUANTITIES)}")
    kind, known_sign, _ = _QUANTITIES[quantity]
    if sign != known_sign:
        raise BadArgument(f"{part!r} is a bound on the wrong side", remedy=f"write {quantity}{known_sign}...")
    units = _UNITS[kind]
    if unit not in units:
        raise BadArgument(
            f"{part!r} has {f'the unit {unit!r}' if unit else 'no unit'}",
            remedy=f"write one of {', '.join(u or 'none' for u in units)}",
        )
    try:
        return Limit(quantity, float(number) * units[unit])
    except ValueError:
        raise BadArgument(f"{number!r} in {part!r} is no number", remedy=_EXAMPLE) from None
