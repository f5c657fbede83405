"""The processes that compile Triton kernels: a few at once, each used again, none left behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from lamina.errors import LaminaError
from lamina.runtime import triton_worker
from lamina.runtime.pool import Pool
from lamina.runtime.triton_worker import Request

__all__ = ["CompilerPool", "TooMuchShared", "TritonError", "compiler_pool"]


class TritonError(LaminaError):
    """A GPU kernel that could not be compiled or loaded; ``what`` holds the compiler's message."""

    code = "LM032"


class TooMuchShared(TritonError):
    """A kernel whose loops read more steps ahead than the GPU's shared memory holds."""

    code = "LM033"


class CompilerPool:
    """At most ``jobs`` compiler processes, started when needed. Safe to use from several threads."""

    def __init__(self, jobs: int) -> None:
        self._threads = Pool(jobs, "lamina-triton")
        self._jobs = jobs
        self._idle: deque[_Worker] = deque()  # those that have compiled something first
        self._running = 0
        self._guard = threading.Lock()

    def compile(self, request: Request, timeout: float = 300.0) -> Future[dict[str, Any]]:
        """Compile a kernel; the future raises ``TritonError``."""
        return self._threads.submit(self._compile, request, timeout)

    def start(self) -> None:
        """Start the processes now: importing Triton takes them half a second."""
        for _ in range(self._jobs):
            self._threads.submit(self._begin)

    def _begin(self) -> None:
        """Start a process, if there are fewer than there may be."""
        with self._guard:
            if self._running >= self._jobs:
                return
            self._running += 1
        with self._counted():
            self._idle.append(_Worker())

    def _taken(self) -> _Worker:
        """A process that nobody else asks for the time being."""
        with self._guard:
            while self._idle:
                worker = self._idle.popleft()
                if worker.alive():
                    return worker
                self._running -= 1
            self._running += 1
        with self._counted():
            return _Worker()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """A process that cannot be started does not count."""
        try:
            yield
        except BaseException:
            with self._guard:
                self._running -= 1
            raise

    def _compile(self, request: Request, timeout: float) -> dict[str, Any]:
        try:
            worker = self._taken()
            try:
                reply = worker.ask(request, timeout)
            finally:
                self._idle.appendleft(worker)
        except OSError as error:
            raise TritonError(f"the Triton compiler cannot be run: {error}") from None
        if "error" in reply:
            raise TritonError(f"kernel {request['name']!r} does not compile: {reply['error']}")
        return reply


class _Worker:
    """One compiler process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            (sys.executable, "-P", str(Path(triton_worker.__file__))),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt on the terminal is for the user's program
        )
        folder = tempfile.mkdtemp(prefix="lamina-triton-")
        weakref.finalize(self, _end, self._process, folder, os.getpid())
        self._unread = b""
        self._say({"folder": folder, "path": [p for p in sys.path if p]})

    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: Request, timeout: float) -> dict[str, Any]:
        self._say(request)
        line = self._line(timeout)
        if line is None:
            self._process.kill()
            self._process.wait()
            return {"error": f"stopped after {timeout:.0f} s"}
        if not line:
            return {"error": f"the compiler process ended with code {self._process.wait()}; is Triton installed?"}
        found: dict[str, Any] = json.loads(line)
        return found

    def _say(self, value: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value).encode() + b"\n")
        self._process.stdin.flush()

    def _line(self, timeout: float) -> bytes | None:
        """The next line; empty at the end of the output, None if it takes too long."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        ready = select.poll()
        ready.register(output, select.POLLIN | select.POLLHUP)
        while b"\n" not in self._unread:
            if not ready.poll(timeout * 1000):
                return None
            part = os.read(output, 1 << 16)
            if not part:
                return b""
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def _end(process: subprocess.Popen[bytes], folder: str, owner: int) -> None:
    """Stop a compiler and remove what it wrote; not from a forked child, whose parent goes on with it."""
    if os.getpid() == owner:
        process.kill()
        shutil.rmtree(folder, ignore_errors=True)


_POOLS: dict[tuple[int, int], CompilerPool] = {}
"""By process and number of workers: as many as the process has values of the option jobs."""
_GUARD = threading.Lock()


def compiler_pool(jobs: int) -> CompilerPool:
    """The pool of this process with ``jobs`` compilers (0: one per usable core, at most eight)."""
    count = jobs or min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    key = (os.getpid(), count)  # a forked child has no threads of its parent's pool
    with _GUARD:
        pool = _POOLS.get(key)
        if pool is None:
            pool = _POOLS[key] = CompilerPool(count)
    return pool
