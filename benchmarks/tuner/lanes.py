"""Commands run side by side, each on cores of its own."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

__all__ = ["answer", "answers", "cores_of"]

LONGEST = 600.0
"""Seconds after which a command is given up."""
_TOLD = 500
"""Characters of what a command that failed had written to its error stream."""

Words = tuple[str, ...]


def cores_of(text: str) -> list[tuple[int, ...]]:
    """Lanes from text such as "0,1;2,3"; one lane of whatever the system gives for no text."""
    return [tuple(int(core) for core in lane.split(",")) for lane in text.split(";")] if text else [()]


def answers(
    jobs: Iterable[Words], lanes: Sequence[tuple[int, ...]], seconds: float
) -> Iterator[tuple[Words, dict[str, Any]]]:
    """What ``python -m benchmarks.tuner`` answers to each of ``jobs``, as they end; none is begun after ``seconds``."""
    waiting, given = iter(jobs), threading.Lock()
    done: queue.Queue[tuple[Words, dict[str, Any]] | None] = queue.Queue()
    end = time.monotonic() + seconds

    def work(cores: tuple[int, ...]) -> None:
        while True:
            with given:
                job = next(waiting, None) if time.monotonic() < end else None
            if job is None:
                done.put(None)
                return
            try:
                done.put((job, answer(job, cores)))
            except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
                said = getattr(error, "stderr", None) or str(error)
                done.put((job, {"failed": str(said)[-_TOLD:]}))

    for lane in lanes:
        threading.Thread(target=work, args=(lane,), daemon=True).start()
    left = len(lanes)
    while left:
        found = done.get()
        if found is None:
            left -= 1
        else:
            yield found


def answer(words: Words, cores: tuple[int, ...] = ()) -> dict[str, Any]:
    """The last line that ``python -m benchmarks.tuner`` prints, as JSON; on ``cores``, with as many threads."""
    line = [sys.executable, "-m", "benchmarks.tuner", *words]
    environment = dict(os.environ)
    if cores:
        line = ["taskset", "-c", ",".join(map(str, cores)), *line]
        environment["OMP_NUM_THREADS"] = str(len(cores))
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=LONGEST, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
