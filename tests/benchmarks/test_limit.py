"""Time limits of the benchmarks' first calls."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from benchmarks.limit import TookTooLong, at_most


@pytest.fixture(autouse=True)
def other_timer() -> Iterator[None]:
    """A timer of somebody else's."""
    before = signal.setitimer(signal.ITIMER_REAL, 600)
    yield
    assert signal.setitimer(signal.ITIMER_REAL, *before)[0] > 500


def _goes_on_after_exceptions(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(Exception):
            time.sleep(0.01)


def test_code_that_takes_too_long_is_stopped_though_it_goes_on_after_exceptions() -> None:
    before, began = signal.getsignal(signal.SIGALRM), time.monotonic()
    with pytest.raises(TookTooLong, match="took more than 0 s"), at_most(0.05):
        _goes_on_after_exceptions(30)
    assert time.monotonic() < began + 30
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.parametrize("seconds", [math.inf, 60.0])
def test_what_ends_in_time_is_left_alone(seconds: float) -> None:
    began = time.monotonic()
    with at_most(seconds):
        _goes_on_after_exceptions(0.02)
    assert time.monotonic() >= began + 0.02


def test_nothing_begins_without_time() -> None:
    with pytest.raises(TookTooLong, match="no time was left"), at_most(-1.0):
        pytest.fail("it began")
