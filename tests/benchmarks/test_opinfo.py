"""The operator database's processes: one that dies is reported with the reason it gave."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import opinfo, workers


def _dying(body: str) -> list[str]:
    return [sys.executable, "-u", "-c", f"print('START linalg.det', flush=True)\n{body}"]


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ("def f():\n  raise RuntimeError('a kernel failed')\nf()", "exit status 1: .*RuntimeError: a kernel failed"),
        ("import faulthandler, os\nfaulthandler.enable()\nos.abort()", "exit status -6: Fatal Python error: Aborted"),
        ("import os\nos._exit(3)", "exit status 3$"),
    ],
    ids=["exception", "signal", "silent"],
)
def test_a_dead_process_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, detail: str) -> None:
    started = subprocess.Popen
    monkeypatch.setattr(workers.subprocess, "Popen", lambda command, **more: started(_dying(body), **more))
    results = tmp_path / "results.json"
    assert opinfo.main(["--only", "linalg.det", "--jobs", "1", "--json", str(results)]) == 1
    found = json.loads(results.read_text())["results"][0]
    assert (found["name"], found["status"]) == ("linalg.det", "crash")
    assert re.match(detail, found["detail"])
