"""Timing as it should be done: warmed up, synchronised, medians with their spread, rivals taking turns."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from lamina.errors import BadArgument

__all__ = ["Measurement", "Rivals", "alternate", "benchmark", "orders", "warmup"]

SHORTEST_SAMPLE = 200e-6
"""Seconds that one timed sample lasts at least; faster calls are timed several to a sample."""

MOST_SAMPLES = 1000
"""Samples of one callable at most: the median of more is not steadier."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds per call of one callable, one figure for each sample, in the order they were taken."""

    name: str
    samples: tuple[float, ...]
    calls_per_sample: int

    @property
    def median(self) -> float:
        """Median seconds per call."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Interquartile range in seconds: the width of the middle half of the samples."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return high - low

    def __str__(self) -> str:
        """The median with its spread, in a unit that suits it."""
        factor, unit = next(
            ((f, u) for f, u in ((1.0, "s"), (1e3, "ms")) if self.median * f >= 1.0),
            (1e6, "µs"),
        )
        count = len(self.samples) * self.calls_per_sample
        return f"{self.name}: {self.median * factor:.3g} {unit} (spread {self.spread * factor:.2g}, {count} calls)"


@dataclass(frozen=True, slots=True)
class Rivals:
    """Measurements of several callables that took turns, so that a drift of the machine meets them all."""

    measurements: tuple[Measurement, ...]

    def __getitem__(self, name: str) -> Measurement:
        """The measurement of one callable; raises ``KeyError`` for a name that was not measured."""
        for measurement in self.measurements:
            if measurement.name == name:
                return measurement
        raise KeyError(name)

    def ratio(self, slow: str, fast: str) -> float:
        """How many times as long ``slow`` takes as ``fast``: the median of the ratios within each round."""
        pairs = zip(self[slow].samples, self[fast].samples, strict=True)
        return statistics.median(a / b for a, b in pairs)

    def __str__(self) -> str:
        """One line a callable; from the second on with its speed relative to the first."""
        first, *rest = self.measurements
        return "\n".join([str(first), *(f"{m}, {self.ratio(first.name, m.name):.2f}x" for m in rest)])


def benchmark(
    function: Callable[..., Any], *args: Any, repeats: int = 0, warmup: int = 3, seconds: float = 0.5, **kwargs: Any
) -> Measurement:
    """Time ``function(*args, **kwargs)``.

    ``warmup`` calls run untimed first, the first of which compiles. Then ``repeats`` samples are taken, or, if that is
    0, as many as fit into ``seconds`` (at least 5). The GPU is synchronised around every sample. Gradients, autocast
    and inference mode are as the caller has set them; to time a training step, pass a function that makes one. Raises
    ``BadArgument`` for a count or time that is none or negative, or where there is nothing to call.
    """
    _check(repeats, warmup, seconds)
    _check_callable("benchmark", function)
    name = getattr(function, "__name__", type(function).__name__)
    call = _Call(function, args, kwargs)
    return _take_turns({name: call}, repeats, warmup, seconds).measurements[0]


def alternate(
    functions: Mapping[str, Callable[..., Any]],
    *args: Any,
    repeats: int = 0,
    warmup: int = 3,
    seconds: float = 0.5,
    **kwargs: Any,
) -> Rivals:
    """Time several callables on the same arguments, taking turns sample by sample in this process.

    The arguments are ``benchmark``'s; ``seconds`` is for each callable. Each is called as often behind each other one
    (``orders``).
    Raises ``BadArgument`` for what is no mapping of callables, or an empty one.
    """
    _check(repeats, warmup, seconds)
    remedy = 'give a mapping such as {"eager": f, "lamina": g}'
    if not isinstance(functions, Mapping):
        raise BadArgument(f"alternate was given a {type(functions).__name__}, not a mapping", remedy=remedy)
    if not functions:
        raise BadArgument("there is nothing to time", remedy=remedy)
    for function in functions.values():
        _check_callable("alternate", function)
    calls = {name: _Call(function, args, kwargs) for name, function in functions.items()}
    return _take_turns(calls, repeats, warmup, seconds)


def warmup(function: Callable[..., Any], *args: Any, calls: int = 3, **kwargs: Any) -> float:
    """Call ``function(*args, **kwargs)`` so that what is to be compiled is; returns the first call's seconds.

    A compiled model that will be trained should be warmed up by a whole training step: the backward pass is compiled
    when it first runs. Raises ``BadArgument`` if ``calls`` is below 1 or there is nothing to call.
    """
    _check_number("calls", calls, int, 1)
    _check_callable("warmup", function)
    call = _Call(function, args, kwargs)
    first = call.seconds(1)
    for _ in range(calls - 1):
        call.seconds(1)
    return first


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def seconds(self, count: int) -> float:
        """Seconds per call over ``count`` calls in a row."""
        function, args, kwargs = self.function, self.args, self.kwargs
        _synchronise()
        start = time.perf_counter()
        for _ in range(count):
            function(*args, **kwargs)
        _synchronise()
        return (time.perf_counter() - start) / count


def orders(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Orders, one after the other without end, in which each name comes as often behind each other one.

    What a call finds in a processor's caches depends on what ran before it. Of three whose order is only turned round,
    the first and the last run twice in a row half of the time, on data that they have just used, and the one in the
    middle never does. Two are turned round; more are shuffled, the same way each time, so that none follows itself.
    """
    order = list(names)
    if len(order) < 3:
        yield from itertools.cycle([tuple(order), tuple(reversed(order))])
    random = Random(0)
    while True:
        yield tuple(order)
        last = order[-1]
        random.shuffle(order)
        while order[0] == last:
            random.shuffle(order)


def _take_turns(calls: Mapping[str, _Call], repeats: int, warmup: int, seconds: float) -> Rivals:
    for call in calls.values():
        for _ in range(warmup):
            call.seconds(1)
    once = {name: call.seconds(1) for name, call in calls.items()}
    counts = {name: max(1, round(SHORTEST_SAMPLE / max(t, 1e-9))) for name, t in once.items()}
    if repeats == 0:
        slowest = max(once[name] * counts[name] for name in calls)
        repeats = min(MOST_SAMPLES, max(5, int(seconds / slowest)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for order in itertools.islice(orders(calls), repeats):
        for name in order:
            samples[name].append(calls[name].seconds(counts[name]))
    return Rivals(tuple(Measurement(name, tuple(samples[name]), counts[name]) for name in calls))


@functools.cache
def _has_gpu() -> bool:
    return torch.cuda.is_available()


def _synchronise() -> None:
    if _has_gpu():
        torch.cuda.synchronize()


def _check_callable(who: str, function: object) -> None:
    if not callable(function):
        raise BadArgument(
            f"{who} was given a {type(function).__name__} to call: {function!r}",
            remedy="pass the function first and its arguments after it",
        )


def _check(repeats: int, warmup: int, seconds: float) -> None:
    _check_number("repeats", repeats, int, 0)
    _check_number("warmup", warmup, int, 0)
    _check_number("seconds", seconds, float, 0)


def _check_number(name: str, value: Any, kind: type[int] | type[float], least: int) -> None:
    numbers = (int,) if kind is int else (int, float)
    if not isinstance(value, numbers) or isinstance(value, bool) or not least <= value < math.inf:
        what = "a whole number" if kind is int else "a number"
        raise BadArgument(f"{name} is {value!r}", remedy=f"give {what}, {least} or more")
