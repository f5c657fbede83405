"""The option compare_eager: whether a captured graph runs compiled or by eager, as its own first calls show.

What one process found is kept in the cache, so that another one runs the faster way from its first call on.
"""

from __future__ import annotations

import functools
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot.errors import raising_assertions
from lamina.aot.torch_private import autocast_states, never_captured
from lamina.backends.api import Backend
from lamina.backends.kernels import is_ours
from lamina.backends.regions import build_threads, open_cache
from lamina.base.decision import Decision
from lamina.base.devices import kind_of
from lamina.base.fx.torch_private import forward_of
from lamina.base.reasons import Reason
from lamina.base.recovery import brief
from lamina.base.torch_private import memory_of, without_bases
from lamina.eager_comparison import reasons
from lamina.eager_comparison.clock import GpuTimer, HostTimer, Timer
from lamina.eager_comparison.contest import RULES, Contest, Rules, Verdict
from lamina.eager_comparison.turns import Doubt, Turns, entry
from lamina.eager_comparison.wanted import (
    Estimate,
    Subject,
    estimate_of,
    not_comparable,
    not_wanted,
    returns_views,
    subject_of,
)
from lamina.ir.plan import Plan
from lamina.options import Options
from lamina.record import Record
from lamina.runtime.cache import Cache, digest
from lamina.runtime.toolchain import host_isa

__all__ = ["Trial", "trial_of"]

_WARMUP_CALLS, _WARMUP_CALLS_GPU = 3, 24
"""Calls before the first that is timed: kernels are loaded, memory is touched, CUDA graphs are recorded or not."""

_NEVER = 10**12
"""Calls that no process makes: counts of the rules under which a comparison never ends."""
_ALWAYS = Rules(
    share=float(_NEVER), slower=math.inf, wins=_NEVER, losses=_NEVER, enough=0, pairs=_NEVER, most=_NEVER, shortest=0.0
)
"""The rules under which turns never end, the first of them eager's."""


class Trial:
    """The comparison of a graph with eager by its first calls. ``eager``: the graph by eager, once found to be faster.

    ``plans`` are those of the graph's regions as they are made, its backward's when that is compiled. A decision of
    kind "turns" says whether it is tried and why, one of kind "eager" what was found, with the figures.
    """

    def __init__(
        self,
        gm: GraphModule,
        subject: Subject,
        cache: Cache,
        key: str,
        options: Options,
        notes: _Notes,
        plans: Sequence[Plan],
    ) -> None:
        self.subject, self.cache, self.key, self.notes, self.plans = subject, cache, key, notes, plans
        self.always = options.compare_eager == "always"
        found = None if self.always else _remembered(cache, key)
        self.eager: Callable[..., Any] | None = None
        self.settled = found is not None
        if found is not None:
            faster, reason = found
            self.notes.found(faster, f"found before: {reason}")
            self.eager = _by_eager(gm, subject) if faster else None
        self.captured = None if self.settled else _by_eager(gm, subject)

    def entry(self, compiled: Callable[..., Any], by_eager: bool) -> Callable[..., Any]:
        """``compiled`` as it is called: in turns with eager at first. ``by_eager``: it is eager already."""
        if self.captured is None:
            return compiled
        if by_eager:
            self.notes.turns(Doubt(False, "it is left to eager"))
            return compiled
        gpu = kind_of(self.subject.device).queued
        usual: Timer = GpuTimer(self.subject.device.index or 0) if gpu else HostTimer()
        return entry(
            Turns(
                compiled,
                self.captured,
                training=self.subject.training,
                timer=usual,
                contest=Contest(_ALWAYS if self.always else RULES),
                warmup_calls=0 if self.always else _WARMUP_CALLS_GPU if gpu else _WARMUP_CALLS,
                estimate=self._estimate,
                told=self._told,
            ),
            self.key,
        )

    def _estimate(self) -> Callable[[float], Doubt]:
        if self.always:
            return lambda taken: Doubt(True, "the option compare_eager asks for it")
        try:
            return estimate_of(self.subject, self.plans).doubt
        except Exception as error:
            return Estimate(f"what it costs is not known: {brief(error)}").doubt

    def _told(self, what: Doubt | Verdict, contest: Contest) -> None:
        if isinstance(what, Doubt):
            self.notes.turns(what)
            return
        self.notes.verdict(what, contest)
        if what.sure:
            found = {"kind": "turns", "eager": what.other, "reason": what.reason}
            # The call that decides does not wait for the disk.
            build_threads().submit(self.cache.write_note, self.key, found)


def trial_of(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    backend: Backend,
    options: Options,
    record: Record,
    name: str,
    plans: Sequence[Plan],
) -> Trial | None:
    """The comparison of the graph ``gm`` with eager; None if there is none, which is noted where the options ask.

    ``plans`` are those of its regions, which are added as they are made.
    """
    always = options.compare_eager == "always"
    if options.compare_eager == "off" or not is_ours(backend) or (backend.name == "interp" and not always):
        return None
    notes = _Notes(record, name)
    refused = not_wanted(options) or not_comparable(gm, example_inputs, options.compare_eager in ("all", "always"))
    if refused:
        notes.turns(Doubt(False, refused))
        return None
    subject = subject_of(gm, example_inputs)
    key = _key(gm, example_inputs, options, backend, subject)
    return Trial(gm, subject, open_cache(options), key, options, notes, plans)


def _by_eager(gm: GraphModule, subject: Subject) -> Callable[..., Any]:
    """The graph as it was captured; its results are, as compiled ones are, views of its inputs or of nothing."""
    forward = raising_assertions(forward_of(gm), gm)
    if subject.training or not returns_views(gm):
        return forward

    def run(*inputs: Any) -> Any:
        return tuple(without_bases(forward(*inputs), memory_of(inputs)))

    never_captured(run)
    return run


class _Notes:
    """What the record is told of one graph."""

    def __init__(self, record: Record, name: str) -> None:
        self.record, self.name = record, name

    def turns(self, doubt: Doubt) -> None:
        """Whether it is compared with eager."""
        reason = (reasons.COMPARED if doubt.wanted else reasons.NOT_COMPARED)(why=doubt.reason)
        self._add("turns", doubt.wanted, reason, doubt.facts)

    def verdict(self, verdict: Verdict, contest: Contest) -> None:
        """What the comparison found."""
        facts = (
            ("compiled_us", round(1e6 * contest.usual_median, 1)),
            ("eager_us", round(1e6 * contest.other_median, 1)),
            ("pairs", len(contest.other)),
            ("lost_us", round(1e6 * contest.lost, 1)),
        )
        self.found(verdict.other, verdict.reason, facts)

    def found(self, eager: bool, reason: str, facts: tuple[tuple[str, int | float | str], ...] = ()) -> None:
        """Whether eager runs it."""
        self._add("eager", eager, (reasons.EAGER_RUNS if eager else reasons.COMPILED_RUNS)(why=reason), facts)

    def _add(self, kind: str, taken: bool, reason: Reason, facts: tuple[tuple[str, int | float | str], ...]) -> None:
        decision = Decision(kind, (self.name,), taken, reason, facts)
        self.record.note(self.name, kind, decision)


def _remembered(cache: Cache, key: str) -> tuple[bool, str] | None:
    """Whether eager is faster, and in what words an earlier process said so."""
    kept: Mapping[str, Any] | None = cache.note(key)
    if kept is None or not isinstance(kept.get("eager"), bool) or not isinstance(kept.get("reason"), str):
        return None
    return kept["eager"], kept["reason"]


def _key(gm: GraphModule, example_inputs: Sequence[Any], options: Options, backend: Backend, subject: Subject) -> str:
    """All that the faster way depends on: the graph, its inputs, the options, the machine and this very Lamina."""
    facts = [f"{x.dtype} {tuple(x.shape)} {tuple(x.stride())} {x.requires_grad}" for x in example_inputs]
    device = torch.cuda.get_device_name(subject.device) if kind_of(subject.device).queued else _processor()
    machine = f"{device} {host_isa()} {torch.get_num_threads()} {torch.__version__}"
    modes = f"{subject.training} {autocast_states()} {backend.name}"
    return digest("turns", gm.code, *facts, repr(options.key()), machine, modes, _this_lamina())


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), platform.processor())


@functools.cache
def _this_lamina() -> str:
    """What tells the files of this package from those of another version."""
    folder = Path(__file__).parents[1]
    files = ((str(f.relative_to(folder)), f.stat()) for f in sorted(folder.rglob("*.*")) if f.suffix in _SOURCES)
    return digest(*(f"{name} {about.st_size} {about.st_mtime_ns}" for name, about in files))


_SOURCES = frozenset((".py", ".h"))
