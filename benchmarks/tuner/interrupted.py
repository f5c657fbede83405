"""A tuning run that is killed again and again, and what it ends with."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lamina
from benchmarks.report import write_results
from benchmarks.tuner.lanes import answer
from lamina.tuner.values import Candidate, Row
from tests.tuner.models import batch, small

__all__ = ["planted", "resume"]

KILLS = 10
LATER = 2.0
"""Seconds after a row within which a run is killed."""
PLANTED = ("constant", "wrong_dtype", "one_wrong_element", "mutated_input", "exception_while_timed")
"""Of ``tests/tuner/planted.py``, those whose verdict does not depend on the load of the machine."""


def planted(journal: Path) -> list[Row]:
    """The rows of a small model and wrong candidates."""
    candidates = [Candidate(name, "import", {"target": f"tests.tuner.planted:{name}"}) for name in PLANTED]
    return list(lamina.tune(small(), batch(), candidates=candidates, seconds=0.2, journal=journal).rows)


def _rows(journal: Path) -> int:
    return len(journal.read_text(encoding="utf-8").splitlines()) if journal.exists() else 0


def resume(to: Path) -> int:
    """Kill a run at ten random points all over it; 1 if it does not end with what one that is never killed gives."""
    line = [sys.executable, "-m", "benchmarks.tuner", "planted"]
    drawn = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder, "whole.jsonl"), Path(folder, "killed.jsonl")
        expected = answer(("planted", str(whole)))
        count = len(expected["table"])
        kills: list[dict[str, Any]] = []
        while len(kills) < KILLS:
            with subprocess.Popen([*line, str(killed)], stdout=subprocess.DEVNULL) as run:
                while _rows(killed) < len(kills) * count // KILLS and run.poll() is None:
                    time.sleep(0.05)
                time.sleep(drawn.uniform(0.0, LATER))
                ended = run.poll() is not None
                run.kill()
            kills.append({"rows": _rows(killed), "ended": ended})
            print(f"kill {len(kills)}: {_rows(killed)} rows in the journal", flush=True)
        got = answer(("planted", str(killed)))
        keys = [json.loads(text)["key"] for text in killed.read_text(encoding="utf-8").splitlines()]
    same = got == expected and len(set(keys)) == len(keys) == len(expected["table"])
    print("the same table" if same else f"{got} is not {expected}")
    write_results(to, {"kills": kills, "same": same, "table": got["table"]})
    return 0 if same else 1
