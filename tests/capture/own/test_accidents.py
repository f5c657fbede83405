"""Calls of our own front end that are interrupted anywhere leave what eager leaves: see ``accidents``."""

from __future__ import annotations

import warnings

import pytest

from lamina.capture.own.recorder import Recorder
from tests.capture.own.accidents import accident, draw

FIRST = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("seed", FIRST)
def test_a_call_that_is_interrupted_anywhere(seed: int, error: type[BaseException]) -> None:
    found = {case: accident(case[0], case[2], error, calls=case[1]) for case in draw(seed, 50)}
    assert {case: one.wrong for case, one in found.items() if one.wrong} == {}
    assert sum(one.hit for one in found.values()) > 40


def test_tensors_that_are_never_computed_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "_rescue", lambda *given: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = {accident("list", line, KeyboardInterrupt).wrong for line in range(3000, 6000, 150)}
    assert ("a tensor was never computed",) in wrong
