"""Clocks that are driven: what counts as faster, and how long a search takes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import lamina
from lamina.runtime.clock import Clock as Time
from lamina.tuner import candidates, search, timing
from lamina.tuner.process import Processes
from lamina.tuner.programs import Subject
from lamina.tuner.samples import samples_of
from lamina.tuner.settings import TorchSettings, ambient, changed
from lamina.tuner.values import EAGER, Candidate, Row
from tests.tuner.models import batch, two_parts
from tests.tuner.test_resume import planned

RUNS = 25


class Driven(timing.Clock):
    """A machine whose load comes and goes; a call takes what it returns, times the load of the moment."""

    def __init__(self, seed: int, spread: float) -> None:
        super().__init__(torch.device("cpu"))
        self.drawn, self.spread, self.load = random.Random(seed), spread, 0.0

    def seconds(self, call: Callable[[], Any], count: int) -> float:
        self.load = 0.9 * self.load + self.drawn.gauss(0.0, self.spread)
        spike = 3.0 if self.drawn.random() < 0.02 else 1.0
        return float(call()) * spike * math.exp(self.load + self.drawn.gauss(0.0, 0.02))


def verdicts(speed: float, spread: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(timing, "MOST", 96)
    found = []
    for seed in range(RUNS):
        made = timing.race(lambda: 1e-3, lambda: 1e-3 / speed, Driven(seed, spread), seconds=60.0, threshold=0.01)
        found.append(made.verdict)
    return found


@pytest.mark.parametrize("spread", [0.05, 0.3])
def test_equal_candidates_are_ties_under_load(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    found = verdicts(1.0, spread, monkeypatch)
    assert RUNS - found.count("tie") <= RUNS // 25


def test_what_is_faster_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdicts(1.2, 0.02, monkeypatch).count("faster") >= RUNS - 1
    assert verdicts(1 / 1.2, 0.02, monkeypatch).count("slower") >= RUNS - 1
    assert verdicts(1.005, 0.02, monkeypatch).count("faster") <= RUNS // 25


class Gpus:
    """Two GPUs, as torch tells of them: work is done some time after it was handed over. The first is current."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.busy = dict.fromkeys(("cuda:0", "cuda:1"), 0.0)
        self.waited: list[str] = []
        gpus = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                self.at = 0.0

            def record(self, stream: str = "cuda:0") -> None:
                self.at = gpus.busy[stream]

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, other: Event) -> float:
                return (other.at - self.at) * 1e3

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", str)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: self.waited.append(str(device)))

    def call(self) -> None:
        self.busy["cuda:1"] += 0.25


def test_a_gpu_that_is_not_the_current_one_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus(monkeypatch)
    assert timing.Clock(torch.device("cuda:1")).seconds(gpus.call, 2) == 0.25


def test_work_of_several_gpus_is_waited_for_on_each(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus(monkeypatch)
    model, x = nn.Linear(2, 2), torch.ones(2)
    devices = iter(["cuda:1", "cpu", "cuda:0"])
    held = [Device(next(devices)) for _ in range(3)]
    monkeypatch.setattr(candidates, "tensors_of", lambda model: held)
    found = candidates.devices_of(Subject(model, samples_of(x)))
    assert [str(device) for device in found] == ["cuda:1", "cuda:0", "cpu"]
    timing.Clock(*found).seconds(gpus.call, 2)
    assert gpus.waited == ["cuda:1", "cuda:0"] * 2  # before and after


class Device:
    """What a tensor tells of itself."""

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)


def test_settings_of_this_process_are_those_of_candidates() -> None:
    before = TorchSettings.here()
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        mine, known = TorchSettings.here(), ambient()
        before.apply()
        assert TorchSettings.here() == before
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert "bf16 reduced precision was False and is True" in changed(known)
        mine.apply()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert not torch.backends.cuda.flash_sdp_enabled()
        assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        assert changed(known) == ""
    finally:
        before.apply()


class Slow(Processes):
    """Takes the time that it is told on a clock that it drives; hangs where that is more than it is given."""

    def __init__(self, time: list[float], takes: float, build: float) -> None:
        self.time, self.takes, self.build = time, takes, build

    def run(self, job: Any, seconds: float, stage: Any = None) -> Row:
        self.time[0] += min(seconds, self.takes)
        if self.takes > seconds:
            return Row(job.candidate, "hung", "no answer", limit=seconds)
        row = planned(replace(job.candidate, name="quick") if job.candidate != EAGER else EAGER)
        assert row.figures is not None
        figures = replace(row.figures, build_seconds=self.build)
        return replace(
            row, candidate=job.candidate, figures=figures, verdict="tie" if job.candidate != EAGER else "baseline"
        )


@pytest.mark.parametrize("takes", [0.5, 7.0, 19.0, 29.0, 45.0, 100.0])
@pytest.mark.parametrize("build", [0.1, 20.0])
def test_a_budget_holds(takes: float, build: float, monkeypatch: pytest.MonkeyPatch) -> None:
    time = [1000.0]
    monkeypatch.setattr(search, "CLOCK", Time(lambda: time[0], lambda seconds: None))
    slow = Slow(time, takes, build)
    monkeypatch.setattr(search, "Processes", lambda subject, preload: slow)
    candidates = [Candidate(str(k), "import", {"target": "tests.tuner.models:quick"}) for k in range(300)]

    def tuned(budget: str, **given: Any) -> Any:
        return lamina.tune(
            two_parts(), batch(), candidates=candidates, modules=False, journal=False, budget=budget, **given
        )

    if takes > 60:
        with pytest.raises(lamina.errors.BadArgument, match="nothing can be tuned: no answer"):
            tuned("2min")
        assert time[0] - 1000.0 == 60.0
        return
    found = tuned("2min")
    tried = [row for row in found.rows if row.verdict != "not tried"]
    assert time[0] - 1000.0 <= 120.0
    if takes >= 1:
        left = min(build, 30.0)  # what is kept back to build the chosen one here
        assert time[0] - 1000.0 + left >= 108.0
        assert len(tried) < len(candidates)
        assert all("budget was spent" in row.reason for row in found.rows[len(tried) :])
