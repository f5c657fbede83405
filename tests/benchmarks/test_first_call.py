"""First calls of small models: the models of transformers can be made and called, and results are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import first_call
from benchmarks.first_call_models import MODELS, build


def test_there_are_forty_models_of_three_libraries() -> None:
    assert len(MODELS) == 40
    assert len(set(MODELS.values())) == 4


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("hf_")])
def test_a_model_of_transformers_trains(name: str) -> None:
    pytest.importorskip("transformers")
    model, inputs = build(name)
    loss = first_call._loss(model.train()(**inputs))
    torch.autograd.backward(loss)
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_results_are_kept_and_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "results" / "one.json"
    made = first_call.FirstCall("lamina", "one", True, seconds=2.5, stages={"capture": 1.0})
    assert first_call._kept(path, lambda: made) == made
    assert first_call._kept(path, lambda: pytest.fail("it was measured again")) == made


def test_results_without_figures_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    ours = first_call.FirstCall("lamina", "one", True, seconds=2.0, compiled=4, compiler_cpu_seconds=0.2)
    late = first_call.FirstCall("torch", "one", True, seconds=60.0, error="more than 60 s")
    failed = first_call.FirstCall("lamina", "two", False, error="no library")
    first_call._print("lamina", [ours, late, failed], sequential=False)
    said = capsys.readouterr().out
    assert "1 first calls, longest 2.0 s; rivals take 30.0 times as long, least 30.0" in said
