"""Every decision and boundary has a registered reason: `python -m benchmarks.reasons` on thirty models, a few here."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.provenance import models
from benchmarks.reasons import counted, recorded
from benchmarks.report import RESULTS
from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.record import Record

MODELS = {name: (module, inputs) for name, module, inputs in models()}


@pytest.mark.sampled(one_in=10)
@pytest.mark.parametrize("name", MODELS)
def test_every_decision_and_boundary_has_a_registered_reason(name: str) -> None:
    torch.manual_seed(0)
    counts, lost = counted(recorded(*MODELS[name]))
    assert lost == []
    assert counts["decisions"] > 5


def test_a_map_of_modules_has_reasons_too() -> None:
    counts, lost = counted(recorded(*MODELS["gpt"]))
    assert lost == []
    assert counts["boundaries"] > 36
    assert counts["edges"] > 36


@pytest.mark.parametrize(
    "reason",
    [Reason("unknown", "LM5007"), Reason("", "LM5007"), Reason("two of {name}", "LM5007"), Reason("a text", "LM0001")],
)
def test_what_says_nothing_is_found(reason: Reason) -> None:
    record = Record()
    record.note("region", "stage", Decision("fuse", ("a", "b"), False, reason))
    _, lost = counted(record)
    assert len(lost) == 1


def test_the_last_run_found_reasons_for_all_of_them() -> None:
    last = json.loads((RESULTS / "reasons.json").read_text(encoding="utf-8"))
    assert set(last["models"]) == set(MODELS)
    assert last["without_reason"] == []
    assert last["totals"]["boundaries"] > 300
