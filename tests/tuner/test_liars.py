"""Candidates that lie, end or leave something behind: none is a winner, and each row says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lamina.tuner.process import Processes
from lamina.tuner.programs import Subject
from lamina.tuner.samples import samples_of
from lamina.tuner.settings import TorchSettings
from lamina.tuner.values import Candidate, Row
from lamina.tuner.verification import Allowed
from lamina.tuner.worker import Job
from tests.tuner.liars import Counter, Logs
from tests.tuner.models import mean_square, small
from tests.tuner.test_search import status, within

LIES: dict[str, tuple[str, str, Callable[[], nn.Module]]] = {
    "first_answer": ("refused", "output: ", small),
    "answer_by_size": ("refused", "output: element", small),
    "for_one_size": ("refused", "output: element", small),
    "every_other_call": ("refused", "output: element", small),
    "one_buffer": ("refused", "a later call writes to it", small),
    "other_strides": ("refused", "output: ", small),
    "infinite_for_nan": ("refused", "is inf, eager's is nan", Logs),
    "nan_for_infinite": ("refused", "is nan, eager's is -inf", Logs),
    "other_sign": ("refused", "output: element", Logs),
    "finite_for_nan": ("refused", "eager's is nan", Logs),
    "counts": ("refused", "calls", Counter),
    "draws": ("refused", "random", small),
    "noisy": ("refused", "output: element", small),
    "its_argument": ("refused", "argument x", small),
    "threads_at_build": ("refused", "a setting of torch: threads was", small),
    "dtype_at_build": ("refused", "dtype", small),
    "gradients_at_call": ("refused", "requires_grad is True", small),
    "precision_while_timed": ("refused", "matmul precision was 'highest'", small),
    "argument_while_timed": ("refused", "arguments: it writes to them while it is timed", small),
    "ends": ("crashed", "exit status 0 while it is called first", small),
    "leaves": ("failed", "while it is called first: SystemExit: no more", small),
    "interrupts": ("failed", "while it is called first: KeyboardInterrupt", small),
    "stops": ("hung", "no answer within", small),  # its other threads go on for a moment
    "aborts": ("crashed", "SIGABRT", small),
    "recursion": ("failed", "RecursionError", small),
    "writes_for_ever": ("failed", "more than 64 MiB", small),
    "closes_output": ("crashed", "while it is called first", small),
}


SHOWN_BY_ONE_SIZE = ("one_buffer",)
"""Lies that inputs of two sizes would bring to light by an exception."""
LOSSY = ("first_answer", "infinite_for_nan", "nan_for_infinite", "other_sign", "finite_for_nan", "for_one_size")


def examined(name: str, model: nn.Module, loss: Any = None, error: float | None = None, **settings: Any) -> Row:
    torch.manual_seed(0)
    inputs = [torch.randn(4, 16), torch.randn(4 if name in SHOWN_BY_ONE_SIZE else 6, 16)]
    subject = Subject(model, samples_of(inputs), loss)
    candidate = Candidate(name, "import", {"target": f"tests.tuner.liars:{name}", **settings})
    job = Job(candidate, TorchSettings.here(), seconds=0.1, allowed=Allowed(error), memory=1 << 30)
    return Processes(subject).run(job, 8.0 if name == "stops" else 120.0)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", LIES)
def test_a_liar_does_not_win(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    verdict, reason, model = LIES[name]
    row = examined(name, model().eval())
    assert row.verdict == verdict, row
    assert reason in row.reason
    assert capfd.readouterr().out == ""
    assert sum(map(len, row.log)) < 4000


@pytest.mark.parametrize("name", LOSSY)
def test_an_error_that_is_allowed_is_no_leave_to_lie(name: str) -> None:
    _, _, model = LIES[name]
    row = examined(name, model().eval(), error=0.1)
    assert row.verdict == "refused", row


@pytest.mark.parametrize("name", ["detached", "no_bias_gradient"])
def test_a_liar_about_gradients_does_not_win(name: str) -> None:
    row = examined(name, small(), mean_square)
    assert row.verdict in ("refused", "failed"), row
    assert "grad" in row.reason


def test_what_a_candidate_starts_ends_with_it(tmp_path: Path) -> None:
    mark = tmp_path / "process"
    assert examined("starts_another", small(), file=str(mark)).verdict == "crashed"
    number = int(mark.read_text())
    assert within(10, lambda: "\nState:\tZ" in status(number))
