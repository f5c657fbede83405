"""Running C++ compilers: several at once, each with a deadline, none left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Command", "Outcome", "run_command", "run_commands"]

_TICK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Command:
    """A program to run, in ``folder``, for at most ``timeout`` seconds."""

    words: tuple[str, ...]
    folder: Path
    timeout: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended: whether it succeeded, and what it said."""

    ok: bool
    message: str


def run_commands(commands: Sequence[Command], jobs: int, on_tick: Callable[[int], None]) -> list[Outcome]:
    """Run the commands, at most ``jobs`` at once, and return their outcomes in order.

    Calls in several threads share the ``jobs``: who came first is served first, for each would finish late if all
    ran side by side. ``on_tick(finished)`` is called in this thread now and then. If this thread is interrupted the
    commands are killed.
    """
    turns = _TURNS.setdefault(jobs, threading.Semaphore(jobs))
    running = _Running()
    with ThreadPoolExecutor(max_workers=max(1, min(jobs, len(commands))), thread_name_prefix="lamina-compile") as pool:
        futures = [pool.submit(_run_in_turn, command, running, turns) for command in commands]
        pending = set(futures)
        try:
            while pending:
                _, pending = wait(pending, timeout=_TICK_SECONDS, return_when=FIRST_COMPLETED)
                on_tick(len(futures) - len(pending))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            running.kill()
            raise
    return [future.result() for future in futures]


def run_command(command: Command) -> Outcome:
    """Run one short command at once, in this thread."""
    running = _Running()
    try:
        return _run(command, running)
    except BaseException:
        running.kill()
        raise


# Semaphores wake those who wait in the order in which they came.
_TURNS: dict[int, threading.Semaphore] = {}

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_TURNS.clear)  # turns taken by threads that the child does not have


class _Running:
    """The processes that are running now, so that they can all be stopped."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def add(self, process: subprocess.Popen[str]) -> None:
        with self._guard:
            self._processes.add(process)
            stopped = self._stopped  # stopped while this one was being started
        if stopped:
            _kill(process)

    def remove(self, process: subprocess.Popen[str]) -> None:
        with self._guard:
            self._processes.discard(process)

    def kill(self) -> None:
        with self._guard:
            self._stopped = True
            processes = tuple(self._processes)
        for process in processes:
            _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    # A compiler driver runs its passes as children: the whole group has to go.
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()


def _run_in_turn(command: Command, running: _Running, turns: threading.Semaphore) -> Outcome:
    with turns:
        return _run(command, running)


def _run(command: Command, running: _Running) -> Outcome:
    started = time.monotonic()
    try:
        process = subprocess.Popen(
            command.words,
            cwd=command.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Outcome(False, f"{command.words[0]} cannot be started: {error.strerror or error}")
    running.add(process)
    try:
        said, _ = process.communicate(timeout=command.timeout)
    except subprocess.TimeoutExpired:
        _kill(process)
        process.communicate()
        return Outcome(False, f"{command.words[0]} was stopped after {time.monotonic() - started:.0f} s")
    finally:
        running.remove(process)
    if process.returncode < 0:
        name = signal.strsignal(-process.returncode) or f"signal {-process.returncode}"
        return Outcome(False, f"{command.words[0]} was killed by {name}\n{said}".rstrip())
    return Outcome(process.returncode == 0, said)
