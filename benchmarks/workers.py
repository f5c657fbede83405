"""Worker processes that check many things, one after another, and may crash or hang at any of them."""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.ops.check import Result

__all__ = ["FAILURES", "RESULT", "START", "Crew", "say"]

FAILURES = ("mismatch", "strides", "exception", "crash", "timeout")
START, RESULT = "START ", "RESULT "
"""How a line begins in which a worker says what it is about to check, and what came of it, as JSON."""

LAST_LINES, LONGEST_DETAIL = 4, 600
"""Of what a process that died had written to its error stream, lines and characters."""


def say(result: Result) -> None:
    """Tell the process that waits what came of a check."""
    print(RESULT + json.dumps(asdict(result)), flush=True)


class Crew:
    """Worker processes that take names in chunks; a chunk whose process dies goes on after the culprit.

    ``command`` starts a worker when the names follow it; ``limit`` are the seconds for one name, and ``journal`` is a
    file in which each result is noted and whose results are not asked for again.
    """

    def __init__(
        self, command: Sequence[str], names: Sequence[str], chunk: int, limit: float, journal: Path | None
    ) -> None:
        self.command, self.limit, self.journal = list(command), limit, journal
        self.results: dict[str, Result] = {}
        if journal is not None and journal.exists():
            lines = journal.read_text(encoding="utf-8").splitlines()
            self.results = {r.name: r for r in (Result(**json.loads(line)) for line in lines) if r.name in names}
        self.chunks: queue.Queue[list[str]] = queue.Queue()
        left = [name for name in names if name not in self.results]
        for start in range(0, len(left), chunk):
            self.chunks.put(left[start : start + chunk])
        self.total, self.started = len(names), time.monotonic()

    def run(self, jobs: int, seconds: float) -> dict[str, Result]:
        """The results of all names, or of those that ``seconds`` were enough for."""
        threads = [threading.Thread(target=self._serve, args=(seconds,)) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.results

    def _serve(self, seconds: float) -> None:
        while True:
            try:
                names = self.chunks.get_nowait()
            except queue.Empty:
                return
            while names and time.monotonic() - self.started < seconds:
                names = self._chunk(names, seconds)

    def _chunk(self, names: list[str], seconds: float) -> list[str]:
        """Run one process over ``names``; returns what is left if it died, hung or had no more time."""
        with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as said:
            child = subprocess.Popen([*self.command, *names], stdout=subprocess.PIPE, stderr=said, text=True)
            current, hung = self._follow(child, seconds)
            code = child.wait()
            said.seek(0)
            last = _last_lines(said.read())
        left = [name for name in names if name not in self.results]
        if not left or time.monotonic() - self.started >= seconds:
            return left
        culprit = current or left[0]
        status, detail = ("timeout", f"over {self.limit:.0f} s") if hung else ("crash", f"exit status {code}")
        self._note(Result(culprit, status, f"{detail}: {last}" if last else detail))
        return [name for name in names if name not in self.results]

    def _follow(self, child: subprocess.Popen[str], seconds: float) -> tuple[str, bool]:
        """Note what the child reports until it ends; the name it was at, and whether it took too long."""
        assert child.stdout is not None
        current, hung = "", threading.Event()
        left = seconds - (time.monotonic() - self.started)  # nothing goes on after it, one that hangs the least
        timer = self._timer(child, hung, min(self.limit + 120, left))  # the first also covers the imports
        for line in child.stdout:
            if line.startswith(START):
                current = line.removeprefix(START).strip()
                timer.cancel()
                timer = self._timer(child, hung, min(self.limit, seconds - (time.monotonic() - self.started)))
            elif line.startswith(RESULT):
                self._note(Result(**json.loads(line.removeprefix(RESULT))))
                current = ""
            if time.monotonic() - self.started > seconds:
                child.kill()
                break
        timer.cancel()
        return current, hung.is_set()

    @staticmethod
    def _timer(child: subprocess.Popen[str], hung: threading.Event, seconds: float) -> threading.Timer:
        def stop() -> None:
            hung.set()
            child.kill()

        timer = threading.Timer(min(max(seconds, 0.0), threading.TIMEOUT_MAX), stop)
        timer.daemon = True
        timer.start()
        return timer

    def _note(self, result: Result) -> None:
        self.results[result.name] = result
        if self.journal is not None:
            with self.journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")
        done = len(self.results)
        if result.status in FAILURES:
            print(f"[{done}/{self.total}] {result.name}: {result.status}: {result.detail[:150]}", flush=True)
        elif result.fallback:
            print(f"[{done}/{self.total}] {result.name}: fell back: {result.fallback[:150]}", flush=True)
        elif done % 10 == 0:
            print(f"[{done}/{self.total}] {time.monotonic() - self.started:.0f} s", flush=True)


def _last_lines(text: str) -> str:
    """The end of what a process wrote, in one line: an exception with the frame that raised it, or a crash's frames."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" ~^\n")]
    crash = [k for k, line in enumerate(lines) if line.startswith("Fatal Python error")]
    frames = [k for k, line in enumerate(lines) if line.startswith('File "')]
    start = crash[0] if crash else frames[-1] if frames else -LAST_LINES
    return " | ".join(lines[start:][:LAST_LINES])[:LONGEST_DETAIL]
