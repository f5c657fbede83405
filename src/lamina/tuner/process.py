"""One process for each candidate, with limits of time and memory; whatever becomes of it is a row."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lamina.errors import BadArgument, LaminaError
from lamina.tuner.programs import Subject
from lamina.tuner.values import Row
from lamina.tuner.worker import Job, packed, serve

__all__ = ["Processes", "last_lines"]

_TOLD = 12
"""Last lines of what a process wrote that its row keeps."""
_GRACE = 5.0
"""Seconds that a process is given to end after it has answered."""
_LINE = 300
"""Characters of such a line."""


class Processes:
    """Starts the processes for one subject. Raises ``BadArgument`` for one that cannot be sent to a process.

    A model, inputs and metric that can be pickled are sent to a fresh process; others are there in a fork of this one,
    which is possible as long as no GPU is in use and no gradients are needed.
    """

    def __init__(self, subject: Subject) -> None:
        self._payload: Subject | bytes = subject
        method = "forkserver"
        try:
            self._payload = packed(subject)
        except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
            if subject.training or _uses_gpu():
                raise BadArgument(
                    f"the model, its inputs, loss or metric cannot be sent to another process: {error}",
                    remedy="define classes and functions at the top level of a module",
                ) from error
            method = "fork"
        self._context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            # A server that has torch loaded forks each process in milliseconds.
            self._context.set_forkserver_preload([serve.__module__])

    def run(self, job: Job, seconds: float, stage: Callable[[str], None] = lambda text: None) -> Row:
        """The row of one candidate, after ``seconds`` at most."""
        descriptor, name = tempfile.mkstemp(prefix="lamina-tuner-")
        os.close(descriptor)
        log = Path(name)
        pipe, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=serve, args=(theirs, job, self._payload, name), daemon=False)
        start = time.monotonic()
        try:
            process.start()
            theirs.close()
            row = _answer(pipe, process, job, start + seconds, stage)
            lines = () if row.figures is not None else last_lines(log)
            return replace(row, log=lines, seconds=time.monotonic() - start)
        finally:
            pipe.close()
            _end(process)
            log.unlink(missing_ok=True)


def _uses_gpu() -> bool:
    gpu: Any = torch.cuda
    return bool(gpu.is_initialized())


def _answer(pipe: Any, process: Any, job: Job, end: float, tell: Callable[[str], None]) -> Row:
    stage = ""
    try:
        while pipe.poll(max(0.0, end - time.monotonic())):
            kind, said = pipe.recv()
            if kind == "row":
                return Row.from_json(said)
            stage = said
            tell(said)
        return Row(job.candidate, "hung", f"no answer within its time while {stage or 'its process starts'}")
    except (EOFError, OSError):
        process.join(_GRACE)
        how = _ended(process.exitcode)
        if not stage:
            raise LaminaError(
                f"a process that tries candidates ended by {how} before it began",
                remedy="in a script, call lamina.tune under `if __name__ == '__main__':`, since each process imports "
                "the script; else see what the process printed",
            ) from None
        verdict = "out of memory" if process.exitcode == -signal.SIGKILL else "crashed"
        more = ", which the system does where memory runs out" if verdict == "out of memory" else ""
        return Row(job.candidate, verdict, f"ended by {how}{more} while {stage}")


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
    process.join(_GRACE)
    with contextlib.suppress(ValueError):
        process.close()


def last_lines(log: Path) -> tuple[str, ...]:
    """The last lines that a process wrote."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(line[:_LINE] for line in lines if line.strip())[-_TOLD:]
