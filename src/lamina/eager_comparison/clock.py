"""How long one call of a captured graph takes, its backward included: marks before and after, read later.

On a GPU the marks are events, which the host does not wait for.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from lamina.eager_comparison.contest import Taken

__all__ = ["GpuTimer", "HostTimer", "Span", "Timer", "watch_backward"]


class Timer(Protocol):
    """Sets marks, and tells the seconds between two of them."""

    @property
    def of_host(self) -> bool:
        """Whether marks are of the host's time."""

    def mark(self) -> Any:
        """A mark at this point of the work."""

    def taken(self, begin: Any, end: Any) -> Taken | None:
        """The time from one mark to another; None as long as that is not known."""


def _waits() -> int:
    """How many times this thread has waited for something, other than a processor."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


@dataclass(frozen=True, slots=True)
class HostTimer:
    """Marks are readings of a clock, of the time in which this thread ran, and of how many times it has waited."""

    now: Callable[[], float] = time.perf_counter
    at_work: Callable[[], float] = time.thread_time
    waits: Callable[[], int] = _waits
    of_host: bool = True

    def mark(self) -> tuple[float, float, int]:
        """What they say."""
        return self.now(), self.at_work(), self.waits()

    def taken(self, begin: tuple[float, float, int], end: tuple[float, float, int]) -> Taken:
        """The differences."""
        seconds = end[0] - begin[0]
        return Taken(seconds, min(seconds, end[1] - begin[1]), end[2] > begin[2])


@dataclass(frozen=True, slots=True)
class GpuTimer:
    """Marks are events on the current stream of a GPU."""

    device: int
    of_host: bool = False

    def mark(self) -> Any:
        """An event behind what was launched so far."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def taken(self, begin: Any, end: Any) -> Taken | None:
        """The time between two events; None while the GPU has not reached the second."""
        if not end.query():
            return None
        seconds: float = begin.elapsed_time(end) / 1e3
        return Taken(seconds, seconds)


@dataclass(slots=True)
class Span:
    """One call: the marks around it and, if it has a backward, around that."""

    timer: Timer
    begin: Any
    end: Any = None
    trained: bool = False
    first: Any = None
    last: Any = None
    guard: threading.Lock = field(default_factory=threading.Lock)

    def taken(self) -> Taken | None:
        """What the call took with its backward; None while that is not known."""
        forward = self.timer.taken(self.begin, self.end)
        if forward is None or not self.trained:
            return forward
        with self.guard:
            if self.first is None or self.last is None:
                return None
            backward = self.timer.taken(self.first, self.last)
        if backward is None:
            return None
        waited = forward.waited or backward.waited
        return Taken(forward.seconds + backward.seconds, forward.busy + backward.busy, waited)

    def backward_begins(self, _gradients: Any) -> None:
        """A hook before nodes: marks the first of them."""
        with self.guard:
            if self.first is None:
                self.first = self.timer.mark()

    def backward_ends(self, _given: Any, _taken: Any) -> None:
        """A hook after nodes: marks the last of them so far."""
        with self.guard:
            self.last = self.timer.mark()


def watch_backward(inputs: Sequence[Any], results: Any, span: Span) -> bool:
    """Have the backward from ``results`` to ``inputs`` leave its marks in ``span``; False if there is none.

    It begins with the first node behind a result, and ends with the last of those that pass gradients to the inputs.
    """
    outside = {get_gradient_edge(x).node for x in inputs if isinstance(x, Tensor) and x.requires_grad}
    found = results if isinstance(results, (tuple, list)) else (results,)
    nodes = dict.fromkeys(t.grad_fn for t in found if isinstance(t, Tensor) and t.grad_fn is not None)
    firsts: list[Any] = [node for node in nodes if node not in outside]
    lasts = list(_passing_on(firsts, outside))
    if not lasts:
        return False
    span.trained = True
    for node in firsts:
        node.register_prehook(span.backward_begins)
    for node in lasts:
        node.register_hook(span.backward_ends)
    return True


def _passing_on(firsts: Sequence[Any], outside: set[Any]) -> Iterator[Any]:
    """The nodes behind ``firsts`` that pass gradients to nodes ``outside``."""
    stack, seen = list(firsts), set(firsts)
    while stack:
        node = stack.pop()
        following = [following for following, _ in node.next_functions if following is not None]
        if any(one in outside for one in following):
            yield node
        for one in following:
            if one not in outside and one not in seen:
                seen.add(one)
                stack.append(one)
