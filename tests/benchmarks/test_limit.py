"""Time limits of the benchmarks' first calls, each in a program of its own: signals are the whole process's."""

from __future__ import annotations

import subprocess

from tests.processes import python

PROGRAM = """
import math, signal, time
from contextlib import suppress
from benchmarks.limit import TookTooLong, at_most

def goes_on_after_exceptions(times):
    while times:
        times -= 1
        with suppress(Exception):
            time.sleep(0.01)

def of_somebody_else(number, frame):
    raise AssertionError("not meant for it")

signal.signal(signal.SIGALRM, of_somebody_else)
signal.setitimer(signal.ITIMER_REAL, 1e7)
try:
"""
AFTER = """
except TookTooLong as problem:
    print(problem)
assert 1e6 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1e7, "somebody else's timer goes on"
assert signal.getsignal(signal.SIGALRM) is of_somebody_else, "with somebody else's handler"
"""


def _printed(*lines: str) -> str:
    program = PROGRAM + "".join(f"    {line}\n" for line in lines) + AFTER
    done = subprocess.run([*python(), "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_code_that_takes_too_long_is_stopped_though_it_goes_on_after_exceptions() -> None:
    found = _printed("with at_most(0.1):", "    goes_on_after_exceptions(-1)", "print('not stopped')")
    assert found == "took more than 0 s"


def test_what_ends_in_time_is_left_alone() -> None:
    for seconds in ("math.inf", "1e5"):
        assert _printed(f"with at_most({seconds}):", "    goes_on_after_exceptions(2)", "print('done')") == "done"


def test_nothing_begins_without_time() -> None:
    found = _printed("with at_most(-1.0):", "    print('it began')")
    assert found == "was not begun: no time was left"
