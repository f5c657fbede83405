"""Checks programs in processes of their own, which may crash or hang: that is then a finding."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import multiprocessing
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from lamina.errors import LaminaError
from lamina.testing.fuzz.check import Verdict, check, check_capture
from lamina.testing.fuzz.differ import Difference
from lamina.testing.fuzz.generate import generate
from lamina.testing.fuzz.observe import Raised, observe
from lamina.testing.fuzz.target import compile_function

__all__ = ["Answer", "Job", "Worker", "signature"]

LIFE = 400
"""A process is replaced after so many programs: what torch.compile keeps of each adds up."""

_DRAWING = "drawing"
"""What a process says before it runs a program again, with other inputs."""

_GRACE = 5.0
"""Seconds that a process is given to end by itself."""

_READY = "ready"
"""What a process says first."""

_FRAMES = 12
"""Innermost frames told of a thread of a process that hangs."""


@dataclass(frozen=True, slots=True)
class Job:
    """A program's text, or the seed and ingredients that make it, and the compile function's name.

    ``want`` is a signature: then the answer need only be complete if the program has it. With ``calm`` eager must then
    raise nothing.
    """

    target: str
    source: str = ""
    seed: int = 0
    only: tuple[str, ...] = ()
    want: tuple[str, str, bool] | None = None
    calm: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The program and what became of it. ``capture``: torch.compile's capture alone differs as well."""

    source: str
    verdict: Verdict
    capture: bool = False
    seconds: float = 0.0


def signature(answer: Answer) -> tuple[str, str, bool]:
    """What must stay while a program is reduced: kind, exceptions, and whose fault it is."""
    if answer.verdict.ok:
        return ("", "", False)
    first = answer.verdict.differences[0]
    errors = _error_names(first.text) if first.kind == "error" else ""
    return (first.kind, errors, answer.capture)


def _error_names(text: str) -> str:
    mine, _, theirs = text.partition(", eager's is ")
    return f"{_name(mine)} {_name(theirs)}"


def _name(text: str) -> str:
    head = text.removeprefix("is not there: ").partition("(")[0]
    return head if head.isidentifier() else ""


class Worker:
    """One process that answers jobs, started anew when it ends. Use as a context manager.

    A program may take so many ``seconds`` for each draw of its inputs: where rounding is judged there are up to 40.
    ``ask`` raises ``LaminaError`` where a process cannot start, as in a script that its processes would run again.
    """

    def __init__(self, seconds: float = 120.0) -> None:
        self.seconds = seconds
        # A server that has torch loaded forks each process in milliseconds: programs that crash are reduced too.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        self._process: Any = None
        self._pipe: Connection | None = None
        self._told: Path | None = None  # where the process writes its stacks when asked to
        self._done = 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process."""
        if self._pipe is not None:
            self._pipe.close()  # ends a process that waits for a job
        if self._process is not None:
            self._process.join(_GRACE)
            self._process.kill()
            self._process.join()
        if self._told is not None:
            self._told.unlink(missing_ok=True)
        self._process = self._pipe = self._told = None

    def ask(self, job: Job) -> Answer:
        """Check one program. A process that ends or takes too long is a difference of its own."""
        if self._process is None or self._done >= LIFE or not self._process.is_alive():
            self._start()
        assert self._pipe is not None
        self._done += 1
        before = time.monotonic()
        try:
            self._pipe.send(job)
            while self._pipe.poll(self.seconds):
                answer: Answer | str = self._pipe.recv()
                if isinstance(answer, Answer):
                    return answer
            where = self._stacks()
            self._process.kill()
            found = Difference("hang", "process", f"no answer after {self.seconds:.0f} s{where}")
        except (EOFError, OSError):
            self._process.join(10)
            found = Difference("crash", "process", f"ended by {_reason(self._process.exitcode)}")
        self.stop()
        source = job.source or generate(job.seed, job.only)
        return Answer(source, Verdict((found,)), seconds=time.monotonic() - before)

    def _start(self) -> None:
        self.stop()
        self._pipe, theirs = self._context.Pipe()
        descriptor, name = tempfile.mkstemp(prefix="lamina-fuzz-")
        os.close(descriptor)
        self._told = Path(name)
        self._process = self._context.Process(target=_serve, args=(theirs, name), daemon=True)
        self._process.start()
        theirs.close()
        self._done = 0
        try:
            self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(_GRACE)
            code = self._process.exitcode
            self.stop()
            raise LaminaError(
                f"a process that checks programs ended by {_reason(code)} before it took one",
                remedy="in a script, call what starts processes under `if __name__ == '__main__':`, since each process "
                "imports the script; else see what the process printed",
            ) from None

    def _stacks(self) -> str:
        """Where each thread of the process is, the innermost frames first."""
        assert self._told is not None
        with contextlib.suppress(OSError):
            os.kill(self._process.pid, signal.SIGUSR1)
        self._process.join(1.0)  # the handler writes at once, whatever the process is doing
        threads = self._told.read_text(errors="replace").split("\n\n")
        said = []
        for thread in threads:
            frames = re.findall(r'File "(?:.*/)?([^"/]+)", line (\d+) in (\S+)', thread)[:_FRAMES]
            if frames:
                said.append(" < ".join(f"{name} {file}:{line}" for file, line, name in frames))
        return "".join(f"; at {one}" for one in said)


def _reason(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit status {code}"


def _serve(pipe: Connection, stacks: str) -> None:
    """Answer jobs until the other side goes away; on the signal SIGUSR1 say in the file ``stacks`` what runs."""
    faulthandler.register(signal.SIGUSR1, os.open(stacks, os.O_WRONLY), all_threads=True)
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    pipe.send(_READY)
    while True:
        try:
            job: Job = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(_answer(job, lambda: pipe.send(_DRAWING)))


def _answer(job: Job, drawing: Callable[[], None]) -> Answer:
    before = time.monotonic()
    source = job.source or generate(job.seed, job.only)
    if job.want is not None and not _promising(source, job.calm):
        return Answer(source, Verdict())
    verdict = _guarded(lambda: check(source, job.target, drawing))
    worth = not verdict.ok and (job.want is None or job.want[0] == verdict.kind)
    drawing()
    capture = (
        worth
        and not _guarded(
            lambda: Verdict((Difference("error", "", ""),) * check_capture(source, job.target, drawing))
        ).ok
    )
    return Answer(source, verdict, capture, time.monotonic() - before)


def _guarded(function: Callable[[], Verdict]) -> Verdict:
    """The verdict, or an error of the check itself as a difference: a program must not be able to hide one."""
    try:
        return function()
    except Exception as raised:
        return Verdict((Difference("error", "check", f"{type(raised).__name__}({raised})"),))


def _promising(source: str, calm: bool) -> bool:
    """Whether eager runs the program to its end; one that it does not would differ in nothing of interest."""
    try:
        trace = observe(source, compile_function("none"))
    except Exception:
        return False
    return not any(isinstance(leaf, Raised) for leaf in (trace.leaves.values() if calm else [trace.leaves.get("end")]))
