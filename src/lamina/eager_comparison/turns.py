"""A compiled graph that proves itself: its first calls are taken in turns with the graph as it was captured.

Each call is made once, one way or the other. As soon as it is known which way is faster, the entry is that way itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lamina.aot.torch_private import dispatch_is_watched, never_captured, saving_is_hooked, transforms_are_active
from lamina.base.devices import kind_of
from lamina.base.recipes import made_of
from lamina.base.recovery import brief
from lamina.base.symbolic.torch_private import is_fake
from lamina.eager_comparison.clock import Span, Timer, watch_backward
from lamina.eager_comparison.contest import Contest, Taken, Verdict
from lamina.runtime.torch_private import is_capturing

__all__ = ["Doubt", "Turns", "entry"]

_PATIENCE = 50
"""Calls for which a time, such as that of a backward, is waited for."""

_LOOK = 5e-6
"""Seconds of the host that two looks at its clocks take."""

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Doubt:
    """Whether, and why or why not, a graph is to be compared with eager, which is estimated to take ``seconds``."""

    wanted: bool
    reason: str
    facts: tuple[tuple[str, int | float | str], ...] = ()
    seconds: float = 0.0


class Turns:
    """The calls of one graph until it is known which way is faster.

    ``compiled`` and ``captured`` are the two ways. ``training``: calls have a backward, whose time counts. After
    ``warmup_calls`` calls a few of the compiled way are timed, then there is a doubt or none: ``estimate``, which is
    called in the last of the former, or later if there is none, tells, given how long they took. ``told`` gets it, and
    the verdict, which is followed.
    """

    def __init__(
        self,
        compiled: Function,
        captured: Function,
        *,
        training: bool,
        timer: Timer,
        contest: Contest,
        warmup_calls: int,
        estimate: Callable[[], Callable[[float], Doubt]],
        told: Callable[[Doubt | Verdict, Contest], None],
    ) -> None:
        self.compiled, self.captured, self.training = compiled, captured, training
        self.timer, self.contest, self.warmup_calls = timer, contest, warmup_calls
        self.estimate, self.told = estimate, told
        self._doubt: Callable[[float], Doubt] | None = None
        self.current: Function = self.call
        self.switch: Callable[[Function], None] = lambda winner: None
        self.calls = self._sleep = 0
        self._waited = 0
        self._open: tuple[bool, Span, int] | None = None
        self._pair: dict[bool, Taken] = {}
        self._pairs = 0
        self._asked = self._warm = self.by_eager = False
        self._passed = 0
        self._guard = threading.Lock()

    def call(self, *inputs: Any) -> Any:
        """One call; those that run beside it, or within it, are the compiled way's and do not count."""
        if self.calls < self._sleep:
            self.calls += 1
            return self.compiled(*inputs)
        if not self._guard.acquire(blocking=False):
            self._passed += 1
            return self.compiled(*inputs)
        try:
            return self._call(inputs)
        finally:
            self._guard.release()

    def _call(self, inputs: Sequence[Any]) -> Any:
        other = None
        try:
            other = self._planned(inputs)
        except Exception as error:
            self._failed(error)
        return self.compiled(*inputs) if other is None else self._timed(other, inputs)

    def _planned(self, inputs: Sequence[Any]) -> bool | None:
        """Whether this call is the other way's, None if it is not timed."""
        if self.current != self.call or _is_unusual(inputs) or (self.training and torch.is_inference_mode_enabled()):
            return None
        if self.training and saving_is_hooked(True):
            # A checkpoint compares what a second run saves with what the first one saved.
            self._end(Verdict(False, "hooks on saved tensors see what it saves", sure=False))
            return None
        self.calls += 1
        if self.calls <= self.warmup_calls:
            if self.calls == self.warmup_calls:
                self._doubt = self.estimate()
            return None
        return self._next()

    def _next(self) -> bool | None:
        """Whether the next call is the other way's, None if it is not timed."""
        if self._open is not None and not self._read():
            self._waited += 1
            if self._waited > _PATIENCE:
                self._end(
                    Verdict(False, f"its time, or its backward's, was not known after {_PATIENCE} calls", sure=False)
                )
            return None
        self._waited = 0
        if self.current != self.call:
            return None
        contest = self.contest
        if len(contest.usual) < contest.rules.enough:
            return False
        if not self._asked and not self._wanted():
            return None
        if len(self._pair) == 1:
            return not next(iter(self._pair))
        needed = contest.affordable()
        if needed > contest.rules.most:
            self._end(contest.too_dear())
            return None
        if needed > self.calls:
            self._sleep = needed
            return None
        return True if not self._warm else self._pairs % 2 == 1

    def _wanted(self) -> bool:
        self._asked = True
        ask = self._doubt or self.estimate()
        doubt = ask(min((call.own for call in self.contest.usual), default=0.0))
        self.contest.foreseen = doubt.seconds
        self.told(doubt, self.contest)
        if not doubt.wanted:
            self._take(self.compiled)
        return doubt.wanted

    def _timed(self, other: bool, inputs: Sequence[Any]) -> Any:
        passed = self._passed
        span = Span(self.timer, self.timer.mark())
        refused = ""
        try:
            results = (self.captured if other else self.compiled)(*inputs)
        except Exception as error:
            if not other:
                raise
            refused = brief(error)  # the error itself holds what eager has made so far
        if refused:  # nothing was written to, so that the compiled way can make the call
            self._end(Verdict(False, f"eager raised {refused}", sure=False))
            return self.compiled(*inputs)
        try:
            self._note(other, span, passed, inputs, results)
        except Exception as error:
            self._failed(error)
        return results

    def _note(self, other: bool, span: Span, passed: int, inputs: Sequence[Any], results: Any) -> None:
        """Wait for the time of a call that was made just now, and for that of its backward."""
        span.end = self.timer.mark()
        if not self.training or not _records(results) or watch_backward(inputs, results, span):
            self._open = other, span, passed
        else:
            self._end(Verdict(False, "its results have no history that tells when a backward ends", sure=False))
        if self.timer.of_host:
            looked = self.timer.taken(span.end, self.timer.mark()) if self.training else None
            self.contest.looks += _LOOK if looked is None else _LOOK + looked.busy

    def _read(self) -> bool:
        """Hand the time of the last timed call to the contest; False while it is not known."""
        assert self._open is not None
        other, span, passed = self._open
        taken = span.taken()
        if taken is None:
            return False
        self._open = None
        if passed == self._passed:  # nothing ran beside it
            self._count(other, taken)
        return True

    def _count(self, other: bool, taken: Taken) -> None:
        contest, verdict = self.contest, None
        if other and not self._warm:
            self._warm = True
            contest.warmed(taken)
        elif not self._warm:
            verdict = contest.settled(taken)
        else:
            self._pair[other] = taken
            if len(self._pair) == 2:
                verdict = contest.pair(self._pair[False], self._pair[True], self.calls)
                self._pair.clear()
                self._pairs += 1
        if verdict is not None:
            self._end(verdict)

    def _failed(self, error: Exception) -> None:
        """End it for an error that is neither way's: the way that is taken, or was there, makes all calls."""
        self._open = None
        self._take(self.compiled)
        with contextlib.suppress(Exception):  # what is told of it may be what fails
            self.told(Verdict(False, f"they could not be compared: {brief(error)}", sure=False), self.contest)

    def _end(self, verdict: Verdict) -> None:
        self._open = None
        self.by_eager = verdict.other
        self._take(self.captured if verdict.other else self.compiled)
        self.told(verdict, self.contest)

    def _take(self, winner: Function) -> None:
        """Run ``winner`` from now on; what only the other way needs is let go."""
        self.current = self.compiled = self.captured = winner
        self.switch(winner)


def entry(turns: Turns, verdict: str) -> Function:
    """What Dynamo calls: ``turns`` at first, then the winner, with nothing in between but this call.

    ``verdict`` is the note of the cache that will say which one it is.
    """
    current: Function = turns.call

    def run(*inputs: Any) -> Any:
        return current(*inputs)

    def switch(winner: Function) -> None:
        nonlocal current
        current = winner

    turns.switch = switch
    never_captured(run)
    return made_of(run, "turns", compiled=lambda: turns.compiled, by_eager=lambda: turns.by_eager, verdict=verdict)


def _records(results: Any) -> bool:
    """Whether a call has a backward."""
    return any(isinstance(t, Tensor) and t.requires_grad for t in results)


def _is_unusual(inputs: Sequence[Any]) -> bool:
    """Whether a call is not one of those that are to be compared: traced, recorded, watched or deterministic."""
    return (
        dispatch_is_watched()
        or transforms_are_active()
        or torch.are_deterministic_algorithms_enabled()
        or any(is_fake(x) for x in inputs)
        or (any(isinstance(x, Tensor) and kind_of(x).queued for x in inputs) and is_capturing())
    )
