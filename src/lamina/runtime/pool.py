"""Threads for work in the background, and results that can be waited for in any process and after an interrupt."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from lamina.runtime.compilation import TICK_SECONDS, Running, Stopped

__all__ = ["Batch", "Joined", "Later", "Pool"]

_R = TypeVar("_R")
_T = TypeVar("_T")


class Pool:
    """At most ``threads`` threads, started when needed. A process that ends does not wait for them.

    Those of ``concurrent.futures`` are waited for, which keeps an interrupted process alive until its compilers end.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._most, self._name = threads, name
        self._begin()
        _POOLS.add(self)

    def _begin(self) -> None:
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0
        self._guard = threading.Lock()

    def submit(self, work: Callable[..., _T], *args: Any) -> Future[_T]:
        """Have a thread call ``work(*args)``."""
        future: Future[_T] = Future()
        with self._guard:
            self._waiting.put((future, work, args))
            if not self._idle.acquire(blocking=False) and self._started < self._most:
                name = f"{self._name}_{self._started}"
                self._started += 1
                threading.Thread(target=_serve, args=(self._waiting, self._idle), name=name, daemon=True).start()
        return future


def _serve(waiting: SimpleQueue[Any], idle: threading.Semaphore) -> None:
    while True:
        try:
            future, work, args = waiting.get_nowait()
        except Empty:
            idle.release()
            future, work, args = waiting.get()
        if future.set_running_or_notify_cancel():
            try:
                result = work(*args)
            except BaseException as error:  # as in any thread, the one who waits is told
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
        del future, work, args


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()
"""Pools in use, to be told of a fork."""


def _after_fork() -> None:
    for pool in tuple(_POOLS):
        pool._begin()  # the threads, and what they held, are the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Later(Generic[_T]):
    """What ``work(running)`` returns, begun at once in a thread of ``pool``.

    A forked child, which does not have that thread, begins anew when it asks for the result. So does the next who asks
    after one who waited was interrupted: then the compilers that ``running`` knows of are stopped.
    """

    def __init__(self, pool: Callable[[], Pool], work: Callable[[Running], _T]) -> None:
        self._pool, self._work = pool, work
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._attempt: _Attempt[_T] = _Attempt()
        self._pool().submit(self._attempt.run, self._work)

    def result(self) -> _T:
        """The result, waited for. Raises what the work raised."""
        while True:
            attempt = self._attempt
            if attempt.ended is None and self._process != os.getpid():
                self._begin()
                continue
            try:
                while attempt.ended is None:
                    # Python runs the handler of a signal that came just before a wait at the end of that wait only.
                    attempt.done.wait(TICK_SECONDS)
            except BaseException:
                attempt.running.stop()
                raise
            assert attempt.ended is not None
            value, error = attempt.ended
            if error is None:
                return value[0]
            if not isinstance(error, Stopped):
                raise error
            if self._attempt is attempt:
                self._begin()


class _Attempt(Generic[_T]):
    def __init__(self) -> None:
        self.done = threading.Event()
        self.running = Running()
        self.ended: tuple[list[_T], BaseException | None] | None = None

    def run(self, work: Callable[[Running], _T]) -> None:
        try:
            self.ended = [work(self.running)], None
        except BaseException as error:
            self.ended = [], error
        self.done.set()


class Batch(Generic[_R, _T]):
    """Work of several who ask, done as one: ``work(requests, running)`` returns a result for each of the requests.

    It begins with ``begin``, or when somebody wants a result, and what is asked for later is work of the next batch.
    """

    def __init__(self, pool: Callable[[], Pool], work: Callable[[list[_R], Running], list[_T]]) -> None:
        self._pool, self._work = pool, work
        self._requests: list[_R] = []
        self._begun = _Begun[_T]()
        self._guard = threading.Lock()

    def join(self, request: _R) -> Joined[_T]:
        """Ask for one more piece of work."""
        with self._guard:
            self._requests.append(request)
            return Joined(self._begun, len(self._requests) - 1, self.begin)

    def begin(self) -> None:
        """Begin what was asked for so far in a thread of the pool."""
        with self._guard:
            requests, begun, self._requests, self._begun = self._requests, self._begun, [], _Begun[_T]()
            if requests:
                begun.results = Later(self._pool, lambda running: self._work(requests, running))


class _Begun(Generic[_T]):
    def __init__(self) -> None:
        self.results: Later[list[_T]] | None = None


class Joined(Generic[_T]):
    """The place of one who asked among the results of a batch."""

    def __init__(self, begun: _Begun[_T], place: int, begin: Callable[[], None]) -> None:
        self._begun, self._place, self._begin = begun, place, begin

    def result(self) -> _T:
        """The result, waited for. Raises what the work raised."""
        if self._begun.results is None:
            self._begin()
        assert self._begun.results is not None
        return self._begun.results.result()[self._place]
