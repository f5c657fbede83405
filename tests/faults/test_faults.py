"""Faults at stage boundaries, file operations and in the compiler: afterwards results are those of eager."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults import KINDS, RESULTS
from tests.architecture.source import ROOT
from tests.processes import python

SAMPLE = 6


def run(script: str, folder: Path, seconds: float = 250) -> str:
    """What a script says that runs in a process without threads, as forks want it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src"), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*python(), "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def outcomes(script: str, folder: Path, seconds: float = 250) -> list[Any]:
    """The states of the points that a script runs and appends to ``found``."""
    text = run(
        f"import sys\nfrom benchmarks.faults import *\nfound = []\n{script}\nprint(json.dumps(found))", folder, seconds
    )
    return list(json.loads(text.splitlines()[-1]))


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("part", range(3))
def test_a_sample_of_faults(part: int, tmp_path: Path) -> None:
    script = f"found = [[o.state, str(o.point), o.text] for o in run(sample(points(), {SAMPLE})[{part}::3])]"
    found = outcomes(script, tmp_path)
    assert len(found) == SAMPLE // 3
    assert all(state == "same" for state, *_ in found), found


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_fault(tmp_path: Path) -> None:
    found = outcomes("found = [[o.state, str(o.point), o.text] for o in run(points())]", tmp_path, 7000)
    assert not [one for one in found if one[0] not in ("same", "not reached")]


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize(
    ("patch", "fault", "state"),
    [
        (
            "sys.modules['lamina.compile'].is_internal = lambda error: False",
            "Point('stage', 'lamina.compile.compile_captured', 'KeyError', 'training')",
            "raised",
        ),
        (
            "k = sys.modules['lamina.compile']\n"
            "def wrong(gm):\n"
            "    run = lambda args: [t + 1 if isinstance(t, Tensor) else t for t in gm.forward(*args)]\n"
            "    run._boxed_call = True\n"
            "    return run\n"
            "k.aten_calls = wrong",
            "Point('stage', 'lamina.compile.lower', 'KeyError', 'writing')",
            "different",
        ),
        (
            "import time; k = sys.modules['lamina.compile']; k.aten_calls = lambda gm: time.sleep(60)",
            "Point('stage', 'lamina.compile.lower', 'KeyError', 'writing')",
            "hung",
        ),
        (
            "import os; k = sys.modules['lamina.compile']; k.aten_calls = lambda gm: os.abort()",
            "Point('stage', 'lamina.compile.lower', 'KeyError', 'writing')",
            "crashed",
        ),
        (
            "k = sys.modules['lamina.compile']\nreal = k.lower\ndef lower(*args):\n"
            "    if any(Path(tempfile.gettempdir()).glob('lamina_faults_*/cache/v*')): raise KeyError\n"
            "    return real(*args)\nk.lower = lower",
            "Point('stage', 'lamina.backends.cpu.load_program', 'KeyError', 'writing', False)",
            "lasting",
        ),
        ("pass", "Point('stage', 'lamina.backends.cuda.CudaBackend', 'KeyError', 'training')", "not reached"),
    ],
    ids=["raised", "different", "hung", "crashed", "lasting", "not reached"],
)
def test_what_goes_wrong_is_told(patch: str, fault: str, state: str, tmp_path: Path) -> None:
    """With a Lamina that does not recover, or not rightly."""
    seconds = 3.0 if state == "hung" else 100.0  # what does not hang is not to depend on how busy the machine is
    found = outcomes(f"{patch}\nfound = [run_point({fault}, {seconds}).state]", tmp_path)
    assert found == [state]


def test_each_kind_of_point_is_there(tmp_path: Path) -> None:
    found = outcomes("found = [[p.kind, p.what] for p in points()]", tmp_path)
    assert len(found) >= 200
    assert {kind for kind, _ in found} == set(KINDS)
    for kind, what in (("stage", "kill"), ("stage", "interrupt"), ("file", "full disk"), ("file", "kill")):
        assert [kind, what] in found


def test_the_committed_results_are_of_all_kinds_and_good() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert results["points"] >= 200
    assert {name.split(":")[0] for name in results["table"]} == set(KINDS)
    assert {state for counts in results["table"].values() for state in counts} <= {"same", "not reached"}
