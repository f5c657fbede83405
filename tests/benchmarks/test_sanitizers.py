"""The sanitizers' run sees what it is there for: an access outside of memory and an undefined operation in a kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import sanitizers
from benchmarks.sanitizers import OVERFLOW, UNJUDGED, counts, judged, libraries, main, reports_in, sanitized
from benchmarks.workers import Crew
from tests.ops.check import Result

PROGRAM = """
import sys, torch, lamina
import lamina.backends.cpu as cpu

wrong, instead = sys.argv[1:]
emit = cpu.emit

def seeded(kernel, target):
    text = emit(kernel, target)
    assert not wrong or wrong in text, text
    return text.replace(wrong, instead, 1) if wrong else text

cpu.emit = seeded
x = torch.ones(64)
lamina.compile(lambda x: x.exp() + 1)(x)
"""

_END = "  return failed;\\n"
_SUM = "  { volatile int64 most = 9223372036854775807; volatile int64 more = most + 1; (void)more; }\\n" + _END
SEEDS = {
    "nothing": ("", "", "", ""),
    "a bound beyond the end": ("least(end * 64, s0)", "(end * 64 + 64)", "heap-buffer-overflow", ""),
    "a shift by more than there is": (
        _END,
        "  { volatile int by = 70; own = (char*)((int64)1 << by); }\\n  return failed;\\n",
        "shift exponent 70 is too large",
        "",
    ),
    "nothing, where overflow is undefined": ("", "", "", OVERFLOW),
    "a sum beyond the largest integer": (_END, _SUM, "signed integer overflow", OVERFLOW),
    "a sum beyond the largest integer, which wraps": (_END, _SUM, "", ""),
}


ALWAYS = ("nothing", "a bound beyond the end")


@pytest.mark.parametrize("seed", [s if s in ALWAYS else pytest.param(s, marks=pytest.mark.slow) for s in SEEDS])
def test_a_seeded_fault_is_reported_and_nothing_else(seed: str, tmp_path: Path) -> None:
    if not libraries():
        pytest.skip("g++ has no libasan.so and libubsan.so here")
    wrong, instead, said, more = (text.replace("\\n", "\n") for text in SEEDS[seed])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, wrong, instead],
        env=sanitized(tmp_path, more=more),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = reports_in(done.stderr)
    assert found if said else not found, found
    assert all(said in report for report in found), found
    assert not any("pycore" in report or "Objects/" in report for report in found), found  # frames of the interpreter


ASAN = """==1==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x61 at pc 0x7f bp 0x7a sp 0x7b
READ of size 64 at 0x61 thread T0
    #0 0x7f6e6f31b3aa {function}(/proc/self/fd/./5+0x33aa)
    #1 0x7f6e6fe50a02 in _PyEval_EvalFrame Include/internal/pycore_ceval.h:75
"""


@pytest.mark.parametrize("function", ["", "in add_exp "])
def test_the_place_is_the_kernels_frame(function: str) -> None:
    where = f"{function.strip() or 'kernel'}+0x33aa"
    assert reports_in(ASAN.format(function=function)) == [f"heap-buffer-overflow READ of size 64 at {where}"]


def _result(name: str, status: str, **more: str) -> Result:
    return Result(name, status, **more)


def test_what_is_not_judged_skipped_or_falls_back_is_no_pass() -> None:
    results = [
        judged(_result("a", "exception", detail="E: no"), []),
        judged(_result("b", "passed", fallback="region: why"), []),
        judged(_result("c", "strides"), ["shift"]),
        judged(_result("d", "skipped"), []),
    ]
    found = counts(results)
    wanted = {"tasks": 4, "ran": 3, "skipped": 1, "fell_back": 1, "not_judged": 1, "failed": 1, "samples": 3}
    assert found == wanted
    assert results[0].status == UNJUDGED


@pytest.mark.parametrize(("kernels", "status", "code"), [(0, "passed", 1), (1, "passed", 0), (1, "mismatch", 1)])
def test_a_run_without_kernels_or_with_a_report_fails(
    kernels: int, status: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(crew: Crew, jobs: int, seconds: float) -> dict[str, Result]:
        for number in range(kernels):
            file = Path(os.environ["LAMINA_CACHE_DIR"]) / str(number) / "kernels.so"
            file.parent.mkdir(parents=True)
            file.touch()
        return {"static/float32/exp": _result("static/float32/exp", status)}

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sanitizers, "libraries", lambda compiler="g++": "x y")
    monkeypatch.setattr(Crew, "run", run)
    out = tmp_path / "out.json"
    assert main(["--part", "static", "--dtype", "float32", "--only", "exp", "--out", str(out)]) == code
    assert json.loads(out.read_text())["files_of_kernels"] == kernels
