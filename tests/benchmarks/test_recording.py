"""A failure in what is recorded or told harms nothing; what recording costs was measured."""

from __future__ import annotations

import json
import warnings
from importlib import import_module

import pytest
import torch

import lamina
from benchmarks import recording
from benchmarks.report import RESULTS
from lamina.record import Record

SAMPLE = ("lamina.record.Stage", "lamina.compile.library_decisions", "lamina.rewrite.rewriting.unmatched")


def test_failures_in_a_sample_of_places_do_no_harm() -> None:
    assert recording.failures(SAMPLE, ("KeyError",)) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_failures_in_all_places_do_no_harm() -> None:
    assert recording.failures() == []


def test_harm_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(self: Record, region: str, name: str, decided: object, *args: object) -> None:
        self.note(region, name, *decided(*args))  # type: ignore[operator]

    monkeypatch.setattr(Record, "told", told)
    found = recording.failures(("lamina.compile.library_decisions",), ("KeyError",))
    assert any("left to ATen" in line for line in found)


def test_a_failure_is_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> object:
        raise KeyError("injected")

    torch.compiler.reset()
    monkeypatch.setattr(import_module("lamina.compile"), "library_decisions", failing)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = lamina.compile(lambda x: (x @ x).sin() @ x, options={"strict": True, "compare_eager": "off"})
        compiled(torch.ones(3, 3, requires_grad=True)).sum().backward()
    (note,) = compiled.record.decisions("record")
    assert (note.code, note.subject) == ("LM9001", ("lower",))
    assert "KeyError: 'injected'" in note.reason


def test_the_committed_figures() -> None:
    found = json.loads((RESULTS / "recording.json").read_text(encoding="utf-8"))
    assert found["harm"] == []
    assert found["places"] == len(recording.PLACES)
    assert set(found["cost"]) == set(recording.MODELS)
    assert all(one["share"] <= 0.02 for one in found["cost"].values())
    assert set(found["report"]) == set(recording.MODELS)
    assert all(one["share"] <= 0.2 for one in found["report"].values())
