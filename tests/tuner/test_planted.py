"""Candidates that must never win: each is refused with the reason, or a tie."""

from __future__ import annotations

import pytest
import torch

from lamina.tuner.process import Processes
from lamina.tuner.programs import Subject
from lamina.tuner.samples import samples_of
from lamina.tuner.values import Candidate, Row
from lamina.tuner.worker import Job, TorchSettings
from tests.tuner.models import mean_square, small
from tests.tuner.planted import Boxed

CASES = {
    "constant": ("refused", "output: element"),
    "wrong_dtype": ("refused", "output: float64"),
    "one_wrong_element": ("refused", "output: element [2, 3] is"),
    "nan_inside": ("refused", "element [1, 1] is nan"),
    "mutated_input": ("refused", "argument x"),
    "wrong_gradient": ("refused", "gradient of"),
    "slower": (("tie", "slower"), ""),
    "hang": ("hung", "while it is called first"),
    "segmentation_fault": ("crashed", "SIGSEGV"),
    "out_of_memory": ("out of memory", "while it is called first"),
    "exception_while_timed": ("failed", "while it is timed: ValueError: no more calls"),
    "later_wrong": ("refused", "after it was timed"),
}


def examined(name: str) -> Row:
    model = Boxed(small()).eval() if name == "nan_inside" else small()
    loss = mean_square if name == "wrong_gradient" else None
    subject = Subject(model, samples_of(torch.randn(4, 16)), loss)
    candidate = Candidate(name, "import", {"target": f"tests.tuner.planted:{name}"})
    job = Job(candidate, TorchSettings.here(), seconds=0.5, memory=1 << 30)
    return Processes(subject).run(job, 8.0 if name == "hang" else 120.0)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", CASES)
def test_a_planted_candidate_does_not_win(name: str) -> None:
    verdict, reason = CASES[name]
    row = examined(name)
    assert row.verdict in verdict, row
    assert reason in row.reason
    if name == "segmentation_fault":
        assert any("about to read" in line for line in row.log)


@pytest.mark.parametrize("name", ["no_fork", "no_driver"])
def test_what_cannot_be_a_fork_is_a_process_of_its_own(name: str) -> None:
    row = examined(name)
    assert row.figures is not None, row
    assert row.verdict in ("tie", "faster", "slower")
