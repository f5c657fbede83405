"""Candidates on a GPU that lose its context, take all of its memory, hang or answer before they are done."""

from __future__ import annotations

import pytest
import torch

import lamina
from lamina.tuner.process import Processes
from lamina.tuner.programs import Subject
from lamina.tuner.samples import samples_of
from lamina.tuner.settings import TorchSettings
from lamina.tuner.values import Candidate, Row
from lamina.tuner.worker import Job
from tests.tuner.models import batch, small

CASES = {
    "poisoned_context": (("failed", "crashed"), "CUDA error"),
    "gpu_out_of_memory": (("out of memory",), "while it is called first"),
    "gpu_hang": (("hung",), "while it is called first"),
    "unfinished": (("refused",), "output: element"),
    "constant": (("refused",), "output: "),
    "one_wrong_element": (("refused",), "output: element [2, 3] is"),
    "mutated_input": (("refused",), "argument x"),
}


def examined(candidate: Candidate, seconds: float) -> Row:
    subject = Subject(small().cuda(), samples_of(torch.randn(4, 16, device="cuda")))
    return Processes(subject).run(Job(candidate, TorchSettings.here(), seconds=0.2), seconds)


@pytest.mark.parametrize("name", CASES)
def test_a_planted_candidate_does_not_win(name: str) -> None:
    verdicts, reason = CASES[name]
    row = examined(Candidate(name, "import", {"target": f"tests.tuner.planted:{name}"}), 20.0 if "hang" in name else 90)
    assert row.verdict in verdicts, row
    assert reason in row.reason, row


def test_what_comes_after_a_lost_context_is_measured() -> None:
    planted = [Candidate(n, "import", {"target": f"tests.tuner.planted:{n}"}) for n in ("poisoned_context", "gpu_hang")]
    later = Candidate("lamina", "lamina", cost=2)
    result = lamina.tune(
        small().cuda(), batch().cuda(), candidates=[*planted, later], journal=False, candidate_seconds=30, seconds=0.2
    )
    assert [row.verdict for row in result.rows[1:3]] == ["failed", "hung"], str(result)
    assert result.rows[3].figures is not None, str(result)
    assert result.chosen.candidate.name in ("eager", "lamina")
    assert torch.equal(small().cuda()(batch().cuda()).isfinite().all().cpu(), torch.tensor(True))


def test_times_are_those_of_the_stream() -> None:
    row = examined(Candidate("eager", "eager", cost=0), 90)
    assert row.verdict == "baseline"
    assert row.figures is not None
    assert row.figures.peak_memory is not None
    assert 1e-6 < row.figures.p50 < 0.1


def test_two_gpus_give_the_rows_of_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    planted = [Candidate(n, "import", {"target": f"tests.tuner.planted:{n}"}) for n in ("poisoned_context", "constant")]
    given = [*planted, Candidate("lamina", "lamina", cost=2)]
    found = [
        lamina.tune(small().cuda(), batch().cuda(), candidates=given, journal=False, seconds=0.2, executor=executor)
        for executor in ("local", "local:2")
    ]
    assert [[row.verdict for row in one.rows[1:3]] for one in found] == [["failed", "refused"]] * 2, str(found[1])
    assert all(one.rows[3].figures is not None for one in found)
