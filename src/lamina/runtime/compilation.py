"""Running C++ compilers: several at once, with one time limit for all, none left behind."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lamina.runtime.clock import CLOCK, Clock
from lamina.runtime.processes import start_process
from lamina.runtime.workspace import Workspace, kill_group

__all__ = ["TICK_SECONDS", "Command", "Limit", "Outcome", "Running", "Stopped", "run_command", "run_commands"]

TICK_SECONDS = 0.5
"""Seconds between looks at time limits and interrupts while compilers run."""
_MOST_SAID = 1 << 17
"""Bytes that are kept of the beginning of what a compiler says, and of the end."""
_MOST_AT_ONCE = 64
"""Compilers that run at once at most, whatever the number of cores: each takes memory of its own."""


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
                changed.wait_for(lambda: len(outcomes) == len(commands), TICK_SECONDS)
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
"""By the option jobs: as many as the process has values of it."""

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


def _said(process: subprocess.Popen[bytes], limit: Limit) -> tuple[str, bool]:
    """What a process says until it ends, and whether its time was over before.

    It has ended when it is no more, whatever others of its group still hold its output open: those end with it.
    """
    assert process.stdout is not None
    output, said, late = process.stdout.fileno(), _Said(), False
    os.set_blocking(output, False)
    try:
        with selectors.DefaultSelector() as waiting:
            waiting.register(output, selectors.EVENT_READ)
            while not _has_ended(process):
                if not waiting.get_map():
                    CLOCK.sleep(TICK_SECONDS / 50)
                elif waiting.select(TICK_SECONDS / 5) and not said.read(output):
                    waiting.unregister(output)
                if not late and limit.over():
                    late = True
                    kill_group(process.pid)
    finally:
        kill_group(process.pid)
        with contextlib.suppress(Exception):
            process.wait()
        with contextlib.suppress(OSError):
            said.read(output)
        process.stdout.close()
    return said.text(), late


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has ended; its number, and that of its group, stay its own until it is waited for."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # somebody waits for all children of this process
        return True


class _Said:
    """The beginning and the end of what a process says, of which there may be any amount."""

    def __init__(self) -> None:
        self._first, self._last, self._left_out = bytearray(), bytearray(), 0

    def read(self, output: int) -> bool:
        """Take what there is now; False if there will be no more."""
        for _ in range(_MOST_AT_ONCE):
            try:
                part = os.read(output, 1 << 16)
            except BlockingIOError:
                return True
            if not part:
                return False
            room = max(0, _MOST_SAID - len(self._first))
            self._first += part[:room]
            self._last += part[room:]
            if len(self._last) > 2 * _MOST_SAID:
                self._left_out += len(self._last) - _MOST_SAID
                del self._last[:-_MOST_SAID]
        return True

    def text(self) -> str:
        """All of it, or what is kept and how much is left out."""
        between = f"\n... {self._left_out} bytes left out ...\n" if self._left_out else ""
        first, last = (part.decode("utf-8", "replace") for part in (self._first, self._last))
        return f"{first}{between}{last}"
