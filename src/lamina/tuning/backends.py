"""Several compilations of one graph: timed by turns on the inputs of the first call, the fastest stays."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import torch

from lamina.backends.regions import Boxed
from lamina.base.decision import Decision
from lamina.base.devices import kind_of
from lamina.base.torch_private import boxed
from lamina.record import Record
from lamina.tuning.reasons import BACKEND_TIMED

__all__ = ["fastest"]

_ROUNDS = 7
"""Turns in which candidates are timed, after one that is not counted."""
_MOST_SECONDS = 2.0
"""Seconds after which no further turn begins."""


def fastest(runs: Mapping[str, Boxed], graph: str, record: Record) -> Boxed:
    """A callable that at its first call times all ``runs`` (by name), notes a decision for each and keeps the fastest.

    The graphs are functional, so that running them again changes nothing but the random generators, which are put back.
    """
    chosen: Boxed | None = None

    def call(args: list[Any]) -> Any:
        nonlocal chosen
        if chosen is None:
            chosen = _choose(runs, args, graph, record) if len(runs) > 1 else next(iter(runs.values()))
        return chosen(args)

    return boxed(call)


def _choose(runs: Mapping[str, Boxed], args: list[Any], graph: str, record: Record) -> Boxed:
    start = time.perf_counter()
    devices = sorted({t.device for t in args if isinstance(t, torch.Tensor) and kind_of(t).queued}, key=str)
    times: dict[str, list[float]] = {name: [] for name in runs}
    with torch.random.fork_rng(devices=devices):
        for turn in range(_ROUNDS + 1):
            for name, run in runs.items():
                spent = _timed(run, list(args), devices)
                if turn:  # the first call also loads and warms up
                    times[name].append(spent)
            if turn and time.perf_counter() - start > _MOST_SECONDS:
                break
    middle = {name: median(spent) for name, spent in times.items()}
    best = min(middle, key=lambda name: middle[name])
    decisions = tuple(
        Decision("candidate", (graph, name), name == best, BACKEND_TIMED(us=f"{us * 1e6:.1f}"), (("us", us * 1e6),))
        for name, us in middle.items()
    )
    record.add(graph, "candidates", time.perf_counter() - start, None, decisions)
    return runs[best]


def _timed(run: Boxed, args: list[Any], devices: list[torch.device]) -> float:
    for device in devices:
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run(args)
    for device in devices:
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
