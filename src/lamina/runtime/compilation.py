"""Running C++ compilers: several at once, with one time limit for all, none left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lamina.base.clock import CLOCK, Clock
from lamina.runtime.processes import start_process
from lamina.runtime.workspace import Workspace, kill_group

__all__ = ["Command", "Limit", "Outcome", "Running", "Stopped", "run_command", "run_commands"]

_TICK_SECONDS = 0.5


class Stopped(Exception):
    """Somebody wanted no result any more."""


class Limit:
    """``seconds`` (0: any number) for all commands that are given this limit together, from the start of the first."""

    def __init__(self, seconds: float, clock: Clock = CLOCK) -> None:
        self.seconds, self.clock = seconds, clock
        self._end: float | None = None
        self._guard = threading.Lock()

    def begin(self) -> None:
        """The time runs from the first call of this."""
        with self._guard:
            if self._end is None:
                self._end = self.clock.now() + self.seconds

    def over(self) -> bool:
        """Whether no time is left."""
        return self.seconds > 0 and self._end is not None and self.clock.now() >= self._end


@dataclass(frozen=True, slots=True)
class Command:
    """A program to run in ``folder``, which a workspace is or holds, until ``limit`` is over."""

    words: tuple[str, ...]
    workspace: Workspace
    limit: Limit


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended: whether it succeeded, what it said, whether it was ``late``, and if so, even ``started``."""

    ok: bool
    message: str
    late: bool = False
    started: bool = True


class Running:
    """The processes that run now for one purpose, so that they can all be stopped, from any thread."""

    def __init__(self) -> None:
        self.stopped = False
        self._guard = threading.Lock()
        self._groups: set[int] = set()

    def add(self, group: int) -> None:
        """Count a process group, or end it if all have been stopped while it was being started."""
        with self._guard:
            self._groups.add(group)
            stopped = self.stopped
        if stopped:
            kill_group(group)

    def remove(self, group: int) -> None:
        """A process group has ended."""
        with self._guard:
            self._groups.discard(group)

    def stop(self) -> None:
        """End all processes, now and from now on."""
        with self._guard:
            self.stopped = True
            groups = tuple(self._groups)
        for group in groups:
            kill_group(group)

    def check(self) -> None:
        """Raise ``Stopped`` after ``stop``."""
        if self.stopped:
            raise Stopped


def run_commands(
    commands: Sequence[Command], jobs: int, on_tick: Callable[[int], None], running: Running | None = None
) -> list[Outcome]:
    """Run the commands, at most ``jobs`` at once, and return their outcomes in order.

    Calls in several threads share the ``jobs``: who came first is served first, for each would finish late if all
    ran side by side. ``on_tick(finished)`` is called in this thread now and then. If this thread is interrupted, or
    ``running`` is stopped, the commands are killed; then it raises ``Stopped``.
    """
    turns = _TURNS.setdefault(jobs, threading.Semaphore(jobs))
    running = running or Running()
    outcomes: dict[int, Outcome | BaseException] = {}
    changed = threading.Condition()
    waiting = iter(enumerate(commands))

    def serve() -> None:
        while True:
            with changed:
                index, command = next(waiting, (-1, None))
            if command is None:
                return
            outcome: Outcome | BaseException
            try:
                with turns:
                    outcome = _run(command, running)
            except BaseException as error:
                outcome = error
            with changed:
                outcomes[index] = outcome
                changed.notify()

    threads = [
        threading.Thread(target=serve, name="lamina-compile", daemon=True) for _ in range(min(jobs, len(commands)))
    ]
    try:
        for thread in threads:
            thread.start()
        while len(outcomes) < len(commands):
            with changed:
                changed.wait_for(lambda: len(outcomes) == len(commands), _TICK_SECONDS)
            on_tick(len(outcomes))
    except BaseException:
        running.stop()
        raise
    running.check()
    ended = [outcomes[index] for index in range(len(commands))]
    for outcome in ended:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in ended if isinstance(outcome, Outcome)]


def run_command(command: Command, running: Running | None = None) -> Outcome:
    """Run one short command at once, in this thread."""
    running = running or Running()
    try:
        outcome = _run(command, running)
    except BaseException:
        running.stop()
        raise
    running.check()
    return outcome


# Semaphores wake those who wait in the order in which they came.
_TURNS: dict[int, threading.Semaphore] = {}

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_TURNS.clear)  # turns taken by threads that the child does not have


def _run(command: Command, running: Running) -> Outcome:
    limit, name = command.limit, command.words[0]
    if running.stopped:
        return Outcome(False, f"{name} was not started")
    limit.begin()
    if limit.over():
        return Outcome(False, f"{name} was not started: {_too_long(limit)}", late=True, started=False)
    try:
        process = start_process(
            (*command.workspace.prefix, *command.words),
            cwd=command.workspace.path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Outcome(False, f"{name} cannot be started: {error.strerror or error}")
    command.workspace.add(process.pid)
    running.add(process.pid)
    try:
        said, late = _said(process, limit)
    finally:
        running.remove(process.pid)
        command.workspace.remove(process.pid)
    if late:
        return Outcome(False, f"{name} was stopped: {_too_long(limit)}", late=True)
    if process.returncode < 0:
        killer = signal.strsignal(-process.returncode) or f"signal {-process.returncode}"
        return Outcome(False, f"{name} was killed by {killer}\n{said}".rstrip())
    return Outcome(process.returncode == 0, said)


def _too_long(limit: Limit) -> str:
    return f"compiling took longer than {limit.seconds:g} s"


def _said(process: subprocess.Popen[str], limit: Limit) -> tuple[str, bool]:
    """All that a process says until it ends, and whether its time was over before."""
    late = False
    while True:
        try:
            said, _ = process.communicate(timeout=_TICK_SECONDS / 5)
            return said, late
        except subprocess.TimeoutExpired:
            if not late and limit.over():
                late = True
                kill_group(process.pid)
        except BaseException:
            kill_group(process.pid)
            with contextlib.suppress(Exception):
                process.wait()
            raise
