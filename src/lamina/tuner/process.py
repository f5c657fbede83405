"""One process for each candidate, with limits of time and memory; whatever becomes of it is a row."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from lamina.errors import BadArgument, LaminaError
from lamina.tuner.programs import Subject
from lamina.tuner.statistics import undisturbed
from lamina.tuner.table import duration
from lamina.tuner.values import EAGER, Figures, Row
from lamina.tuner.worker import Job, packed, serve

__all__ = ["GRACE", "LOOK", "SENDABLE", "Processes", "last_lines"]

_MAIN = b"__main__"
"""What is in the pickle of something of the user's script."""
_STARTS = threading.Lock()
_NOT_BEGUN = (
    "a process that tries candidates ended before it began",
    "in a script, call lamina.tune under `if __name__ == '__main__':`, since each process imports the script; else see "
    "what the process printed",
)
_TYPED = (
    "the model, its inputs, loss or metric are of code that was typed, as in a notebook, and another process has none "
    "of it",
    "define classes and functions in a file, and import them",
)
_FORKED = ("Cannot re-initialize CUDA in forked subprocess", "initialization error")
"""What torch says in a fork of a process that has asked for a GPU by torch, and what CUDA does if by something else."""
_TOLD = 12
"""Last lines of what a process wrote that its row keeps."""
SENDABLE = (
    "define classes and functions at the top level of a module, and leave out what only this process has, such as "
    "locks and open files"
)
"""What to do about a model, inputs, a loss or a metric that cannot be pickled."""
GRACE = 5.0
"""Seconds that a process is given to end after it has answered."""
_LINE = 300
"""Characters of such a line."""
_OUTPUT = 64 << 20
"""Bytes that a process may write in all; one that writes without end would fill the disk."""
LOOK = 0.5
"""Seconds between two looks at what a candidate does: whether it is late, and how much it wrote."""


class Processes:
    """Starts the processes for one subject. Raises ``BadArgument`` for one that cannot be sent to a process.

    A model, inputs and metric that can be pickled are sent to a fresh process, which imports the user's script if their
    classes are of there. Others, and those of a script that would tune anew when it is imported, are there in a fork of
    this one, which is possible as long as no GPU is in use and no gradients are needed. ``subject`` may be as
    ``packed`` gives it. ``preload``: modules that candidates need, loaded once for all of them by the server whose
    forks they are. Where that has asked for a GPU, for whatever it was started, candidates that need one are no forks.
    """

    def __init__(self, subject: Subject | bytes, preload: Sequence[str] = ()) -> None:
        self._payload: Subject | bytes = subject
        self._stopped = threading.Event()
        method = "forkserver"
        try:
            if isinstance(subject, Subject):
                self._payload = packed(subject)
        except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
            if not isinstance(subject, Subject) or subject.training or _uses_gpu():
                raise BadArgument(
                    f"the model, its inputs, loss or metric cannot be sent to another process: {error}",
                    remedy=SENDABLE,
                ) from error
            method = "fork"
        self._script = not isinstance(self._payload, bytes) or _MAIN in self._payload
        if self._script and isinstance(subject, Subject) and (_is_typed() or _would_run()):
            if not (subject.training or _uses_gpu()):
                self._payload, method = subject, "fork"
            elif _is_typed():
                raise BadArgument(_TYPED[0], remedy=_TYPED[1])
        self._context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            # A server that has torch loaded forks each process in milliseconds.
            self._context.set_forkserver_preload([serve.__module__, *preload])

    @property
    def forks(self) -> bool:
        """Whether candidates run in forks of this process."""
        return not isinstance(self._payload, bytes)

    def stop(self) -> None:
        """End what is at work, in whatever thread: nobody waits for its rows any more."""
        self._stopped.set()

    def examine(
        self, job: Job, seconds: float, own: Figures | None, stage: Callable[[str], None] = lambda text: None
    ) -> tuple[Row, Figures | None]:
        """The row of one candidate, and eager's figures in a process of its own, taken again if they were needed.

        ``own``: those figures, as far as they are known for this machine. Threads that a candidate leaves spinning slow
        down eager's turns. A candidate whose calls take longer than eager's own did is therefore held against eager
        once more, in a process without it, and is a tie unless it is faster than that.
        """
        end = time.monotonic() + seconds
        row = self.run(job, seconds, stage)
        figures = row.figures
        if (
            job.rival is not None
            or row.verdict != "faster"
            or figures is None
            or (own is not None and undisturbed(figures.timings, figures.p50) < undisturbed(own.timings, own.p50))
        ):
            return row, own
        left = end - time.monotonic()
        again = self.run(replace(job, candidate=EAGER), left, stage).figures if left > 0 else None
        own = own if again is None else again
        if own is None:
            return replace(row, verdict="tie", reason="eager could not be timed without it in the time left"), None
        mine, alone = undisturbed(figures.timings, figures.p50), undisturbed(own.timings, own.p50)
        if mine < alone:
            return row, own
        told = f"eager takes {duration(figures.baseline)} beside it, and {duration(alone)} in a process of its own"
        return replace(row, verdict="tie", reason=f"{told}; it takes {duration(mine)}"), own

    def run(self, job: Job, seconds: float, stage: Callable[[str], None] = lambda text: None) -> Row:
        """The row of one candidate, after ``seconds`` at most."""
        end = time.monotonic() + seconds
        row = self._run(job, seconds, stage)
        if self.forks or not any(text in row.reason for text in _FORKED):
            return row
        self._context = multiprocessing.get_context("spawn")
        return self._run(job, end - time.monotonic(), stage)

    def _run(self, job: Job, seconds: float, stage: Callable[[str], None]) -> Row:
        descriptor, name = tempfile.mkstemp(prefix="lamina-tuner-")
        os.close(descriptor)
        log = Path(name)
        pipe, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=serve, args=(theirs, job, self._payload, name), daemon=False)
        start = time.monotonic()
        try:
            _start(process, self._script or _MAIN in pickle.dumps(job))
            theirs.close()
            row = _answer(pipe, process, job, seconds, stage, log, self._stopped)
            lines = () if row.figures is not None else last_lines(log)
            return replace(row, log=lines, seconds=time.monotonic() - start)
        finally:
            pipe.close()
            _end(process)
            log.unlink(missing_ok=True)


def _would_run() -> bool:
    """Whether the user's script does again what it has done when a process imports it: it does not look at its name."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    try:
        text = "" if path is None else Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return path is not None and not ("__name__" in text and _MAIN.decode() in text)


def _is_typed() -> bool:
    """Whether there is no script that a process could import: code is typed, as in a notebook, or read from a pipe."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    return getattr(main, "__spec__", None) is None and (path is None or not Path(path).exists())


def _start(process: Any, script: bool) -> None:
    """Start a process, which imports the user's script only if it needs it. Raises ``LaminaError``."""
    main = sys.modules["__main__"]
    with _STARTS:
        try:
            if not script:
                sys.modules["__main__"] = ModuleType("__main__")
            process.start()
        except (BrokenPipeError, EOFError):
            raise LaminaError(_NOT_BEGUN[0], remedy=_NOT_BEGUN[1]) from None
        finally:
            sys.modules["__main__"] = main


def _uses_gpu() -> bool:
    gpu: Any = torch.cuda
    return bool(gpu.is_initialized())


def _answer(
    pipe: Any, process: Any, job: Job, seconds: float, tell: Callable[[str], None], log: Path, stopped: threading.Event
) -> Row:
    stage = "its process starts"
    begun = False
    end = time.monotonic() + seconds
    try:
        while (left := end - time.monotonic()) > 0 and not stopped.is_set():
            if pipe.poll(min(left, LOOK)):
                kind, said = pipe.recv()
                if kind == "row":
                    return Row.from_json(said)
                stage, begun = said, True
                tell(said)
            elif log.stat().st_size > _OUTPUT:
                return Row(job.candidate, "failed", f"while {stage}: it wrote more than {_OUTPUT >> 20} MiB of text")
        return Row(job.candidate, "hung", f"no answer within {duration(seconds)} while {stage}", limit=seconds)
    except (EOFError, OSError):
        process.join(GRACE)
        how = _ended(process.exitcode)
        if not begun:
            raise LaminaError(f"{_NOT_BEGUN[0]}, by {how}", remedy=_NOT_BEGUN[1]) from None
        verdict = "out of memory" if process.exitcode == -signal.SIGKILL else "crashed"
        more = ", which the system does where memory runs out" if verdict == "out of memory" else ""
        return Row(job.candidate, verdict, f"ended by {how}{more} while {stage}", limit=float(job.memory))


def _ended(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit status {code}"


def _end(process: Any) -> None:
    """End a process that answered, or will not."""
    if process.pid is None:
        return
    process.join(0.2)
    if process.is_alive():
        process.kill()
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)  # what it started itself
    process.join(GRACE)
    with contextlib.suppress(ValueError):
        process.close()


def last_lines(log: Path) -> tuple[str, ...]:
    """The last lines that a process wrote."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TOLD * _LINE * 4))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(line[:_LINE] for line in lines if line.strip())[-_TOLD:]
