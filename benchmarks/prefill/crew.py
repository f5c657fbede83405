"""Compiles rivals ahead, in processes of their own, so that the one that measures finds their code on disk.

torch.compile's larger modes take up to a minute a row, nearly all of it on the host and for one row at a time.
Processes that share a GPU can compile, but their clocks lie; so nothing that they decide by timing is kept
(``torch_private.keep_no_timings``): the measuring process chooses again, with most kernels compiled.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from benchmarks.prefill.torch_private import compiler_cache, keep_no_timings, timed_choices, wait_for_compilers

__all__ = ["Deadline", "Job", "Outcome", "prefill", "serve"]

ANSWER = "PREFILLED "


@dataclass(frozen=True, slots=True)
class Job:
    """A row by its full name, and the rival to compile it."""

    row: str
    rival: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job: its seconds, how many choices it made by timing (made again later), and what went wrong."""

    row: str
    rival: str
    seconds: float
    timed: int = 0
    problem: str = ""


class Deadline:
    """A point in time that is passed in, so that a test says when it has come."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def passed(self) -> bool:
        """Whether it has come."""
        return time.monotonic() >= self._end

    def then(self, action: Callable[[], None]) -> Callable[[], None]:
        """Call ``action`` when it comes, unless what this returns is called before."""
        left = min(max(self._end - time.monotonic(), 0), threading.TIMEOUT_MAX)
        timer = threading.Timer(left, action)
        timer.daemon = True
        timer.start()
        return timer.cancel


def serve(compile_row: Callable[[Job], None]) -> None:
    """A child's life: one job a line from standard input, one answer each; ends with its input."""
    wait_for_compilers()
    with tempfile.TemporaryDirectory() as folder:
        _serve(compile_row, keep_no_timings(Path(folder)))


def _serve(compile_row: Callable[[Job], None], begin: Callable[[], None]) -> None:
    for line in sys.stdin:
        begin()
        job = Job(**json.loads(line))
        started = time.perf_counter()
        problem, before = "", timed_choices()
        try:
            compile_row(job)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"[:300]
        outcome = Outcome(job.row, job.rival, time.perf_counter() - started, timed_choices() - before, problem)
        print(ANSWER + json.dumps(asdict(outcome)), flush=True)


def prefill(command: Sequence[str], jobs: Iterable[Job], children: int, threads: int, end: Deadline) -> list[Outcome]:
    """Have ``children`` processes started by ``command``, which call ``serve``, compile ``jobs`` in that order.

    Each uses ``threads`` threads. At the ``end`` those that still run are ended; their jobs fail, and those not
    begun have no outcome. What Inductor noted meanwhile of the schedules it chose is removed from its cache.
    """
    pending: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        pending.put(job)
    began, outcomes = time.time(), list[Outcome]()
    crew = [_Child(command, pending, outcomes, threads, end) for _ in range(children)]
    for child in crew:
        child.start()
    for child in crew:
        child.join()
    for noted in compiler_cache().rglob("*.best_config"):
        if noted.stat().st_mtime >= began - 1:
            noted.unlink(missing_ok=True)
    return outcomes


class _Child(threading.Thread):
    """Feeds one process with jobs; a process that dies costs the job it was at, and a new one goes on."""

    def __init__(
        self,
        command: Sequence[str],
        pending: queue.SimpleQueue[Job],
        outcomes: list[Outcome],
        threads: int,
        end: Deadline,
    ) -> None:
        super().__init__(daemon=True)
        self.command, self.pending, self.outcomes, self.end = list(command), pending, outcomes, end
        # torch's own number of threads stays as it is here: Inductor's cache may tell graphs apart by it.
        self.environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": str(threads)}

    def run(self) -> None:
        while not self.pending.empty() and not self.end.passed():
            with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as said:
                self._one_process(said)

    def _one_process(self, said: IO[str]) -> None:
        process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, env=self.environment
        )
        assert process.stdin is not None
        assert process.stdout is not None
        cancel = self.end.then(process.kill)
        try:
            while (job := self._next()) is not None:
                answer = self._ask(process.stdin, process.stdout, job)
                if answer is None:
                    said.seek(0)
                    last = " | ".join(said.read().strip().splitlines()[-2:])
                    why = "out of time" if self.end.passed() else f"the process died: {last}"[:300]
                    self.outcomes.append(Outcome(job.row, job.rival, 0.0, 0, why))
                    return
                self.outcomes.append(answer)
        finally:
            cancel()
            process.kill()
            process.wait()

    def _next(self) -> Job | None:
        try:
            return self.pending.get_nowait()
        except queue.Empty:
            return None

    @staticmethod
    def _ask(stdin: IO[str], stdout: IO[str], job: Job) -> Outcome | None:
        try:
            stdin.write(json.dumps(asdict(job)) + "\n")
            stdin.flush()
        except OSError:
            return None
        for line in stdout:
            if line.startswith(ANSWER):
                return Outcome(**json.loads(line.removeprefix(ANSWER)))
        return None
