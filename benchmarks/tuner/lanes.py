"""Jobs run side by side, each on cores of its own, and each in a process that no other has used."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["answer", "answers", "cores_of", "serve"]

LONGEST = 600.0
"""Seconds after which a job is given up."""
_TOLD = 500
"""Characters of what a job that failed had written to its error stream."""

Words = tuple[str, ...]
Work = Callable[[Sequence[str]], dict[str, Any]]


def cores_of(text: str) -> list[tuple[int, ...]]:
    """Lanes from text such as "0,1;2,3"; one lane of whatever the system gives for no text."""
    return [tuple(int(core) for core in lane.split(",")) for lane in text.split(";")] if text else [()]


def answers(
    jobs: Iterable[Words], lanes: Sequence[tuple[int, ...]], seconds: float, preload: Words = ()
) -> Iterator[tuple[Words, dict[str, Any]]]:
    """What ``python -m benchmarks.tuner`` answers to each of ``jobs``, as they end; none is begun after ``seconds``.

    ``preload``: modules that are loaded once for all jobs of a lane.
    """
    waiting, given = iter(jobs), threading.Lock()
    done: queue.Queue[tuple[Words, dict[str, Any]] | None] = queue.Queue()
    end = time.monotonic() + seconds

    def work(cores: tuple[int, ...]) -> None:
        with _server(cores, preload) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            while True:
                with given:
                    job = next(waiting, None) if time.monotonic() < end else None
                if job is None:
                    break
                try:
                    server.stdin.write(json.dumps(job) + "\n")
                    server.stdin.flush()
                    done.put((job, json.loads(server.stdout.readline())))
                except (OSError, ValueError) as error:
                    done.put((job, {"failed": str(error)[-_TOLD:]}))
                    break
            server.stdin.close()
        done.put(None)

    for lane in lanes:
        threading.Thread(target=work, args=(lane,), daemon=True).start()
    left = len(lanes)
    while left:
        found = done.get()
        if found is None:
            left -= 1
        else:
            yield found


def _server(cores: tuple[int, ...], preload: Words) -> subprocess.Popen[str]:
    line, environment = _on(cores, ("serve", *preload))
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def serve(work: Work, preload: Sequence[str]) -> int:
    """Read jobs, a line of JSON each, and print what ``work`` gives for each in a process of its own.

    They are forks of this process, which has loaded torch and done nothing else. Those that a job starts for its
    candidates are forks of one server, which has loaded ``preload`` too: a server of its own for each job, as a process
    of the standard library's fork server starts it, would load all of it again.
    """
    server: Any = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([work.__module__, *preload])
    warm = server.Process(target=os.getpid)  # what is loaded is no job's time
    warm.start()
    warm.join()
    context: Any = multiprocessing.get_context("fork")
    for line in sys.stdin:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(work, json.loads(line), theirs))
        process.start()
        theirs.close()
        try:
            said = ours.recv() if ours.poll(LONGEST) else {"failed": f"no answer within {LONGEST:g} s"}
        except EOFError:
            said = {"failed": "its process ended"}
        process.kill()
        process.join()
        print(json.dumps(said), flush=True)
    return 0


def _work(work: Work, words: Sequence[str], pipe: Connection) -> None:
    os.dup2(2, 1)  # what is printed is not an answer
    server: Any = vars(forkserver)["_forkserver"]
    server.ensure_running = lambda: None  # it is, and is no child of this process, as the library asks
    try:
        pipe.send(work(words))
    except Exception:
        pipe.send({"failed": traceback.format_exc()[-_TOLD:]})


def answer(words: Words, cores: tuple[int, ...] = ()) -> dict[str, Any]:
    """The last line that ``python -m benchmarks.tuner`` prints, as JSON; on ``cores``, with as many threads."""
    line, environment = _on(cores, words)
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=LONGEST, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _on(cores: tuple[int, ...], words: Words) -> tuple[list[str], dict[str, str]]:
    line = [sys.executable, "-m", "benchmarks.tuner", *words]
    if not cores:
        return line, dict(os.environ)
    count = str(len(cores))
    environment = os.environ | {"OMP_NUM_THREADS": count, "TORCHINDUCTOR_COMPILE_THREADS": count}
    return ["taskset", "-c", ",".join(map(str, cores)), *line], environment
