"""The sanitizers' run sees what it is there for: an access outside of memory and an undefined operation in a kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.sanitizers import libraries, reports_in, sanitized

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

SEEDS = {
    "nothing": ("", "", ""),
    "a bound beyond the end": ("least(end * 64, s0)", "(end * 64 + 64)", "buffer-overflow"),
    "a shift by more than there is": (
        "  return failed;\\n",
        "  { volatile int by = 70; own = (char*)((int64)1 << by); }\\n  return failed;\\n",
        "shift exponent 70 is too large",
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seeded_fault_is_reported_and_nothing_else(seed: str, tmp_path: Path) -> None:
    if not libraries():
        pytest.skip("g++ has no libasan.so and libubsan.so here")
    wrong, instead, said = (text.replace("\\n", "\n") for text in SEEDS[seed])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, wrong, instead],
        env=sanitized(tmp_path),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = reports_in(done.stderr)
    assert found if said else not found, found
    assert all(said in report for report in found), found
